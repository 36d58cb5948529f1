"""How much memory this process may take: the machine's, or less where a control group says so."""

from __future__ import annotations

import os
import pathlib
import resource
import sys

import pytest

from diskreplay.engine import memory

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
        ("2:cpu,memory:/a\n", {"cpu,memory/a/memory.limit_in_bytes": "4096000\n"}, 4096000),
        ("3:memory:/a/b\n0::/a\n", {"memory/a/memory.limit_in_bytes": "8192000\n", "memory.max": "4096000\n"}, 4096000),
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


def test_what_is_left_is_the_least_limit_less_what_is_held(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = resource.getpagesize()
    monkeypatch.setattr(memory, "HELD", tmp_path / "statm")
    (tmp_path / "statm").write_text("5000 1000 300 1 0 200 0\n")
    monkeypatch.setattr(memory, "limit", lambda: 3000 * page)
    for addresses, expected in ((resource.RLIM_INFINITY, 2000), (9000 * page, 2000), (5500 * page, 500), (page, 0)):
        monkeypatch.setattr(resource, "getrlimit", lambda what, soft=addresses: (soft, soft))
        assert memory.left() == expected * page
    monkeypatch.setattr(memory, "limit", lambda: 900 * page)  # a group whose other processes were there before it
    assert memory.left() == 0
    (tmp_path / "statm").unlink()  # as on macOS
    assert memory.left() == min(900, 1) * page


def test_what_this_process_holds_is_counted() -> None:
    before = memory.left()
    assert 0 < before < memory.limit() <= MACHINE
