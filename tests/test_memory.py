"""How much memory this process may take: the machine's, or less where a control group says so."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from diskreplay import memory

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("", {}, MACHINE),
        ("0::/a/b\n", {}, MACHINE),
        ("0::/a/b\n", {"a/b/memory.max": "max\n"}, MACHINE),
        ("0::/a/b\n", {"a/b/memory.max": "4096000\n", "a/memory.max": "max\n"}, 4096000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "8192000\n"}, 8192000),
        ("0::/\n", {"memory.max": "12288000\n"}, 12288000),
        ("3:cpu,cpuacct:/a\n2:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "4096000\n"}, 4096000),
        ("2:memory:/a\n", {"memory/memory.limit_in_bytes": str(1 << 62)}, MACHINE),
    ],
)
def test_the_least_limit_of_all_groups(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, own: str, limits: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "own")
    (tmp_path / "own").write_text(own)
    for name, limit in limits.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit)
    assert memory.limit() == expected


def test_a_system_that_tells_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "none")
    monkeypatch.delattr(os, "sysconf")
    assert memory.limit() == sys.maxsize
