"""What a commit record says of each array."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.schema.spec import build
from diskreplay.storage import metadata
from diskreplay.storage.commit import Commit, Span, Tail

LINE = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
RECORD = Commit(
    stream=0, num_envs=3, capacity=300, begin=20, end=70, patch_begin=4, patch_end=9,
    tails={"obs": Tail(2, 500), "patches/obs": Tail(1, 60)},
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "span"),
    [
        ("obs", Span(17, 70, 3, Tail(2, 500))),
        ("reward", Span(17, 70, 3, Tail(0, 0))),  # no tail is named
        ("patches/obs", Span(4, 9, 1, Tail(1, 60))),
        ("patches/place", Span(4, 9, 1, Tail(0, 0))),
        ("patches_of_mine", Span(17, 70, 3, Tail(0, 0))),
    ],
)
def test_the_span_of_an_array(path: str, span: Span) -> None:
    assert RECORD.span(path, context=3) == span


def test_an_empty_window_keeps_the_context_of_its_newest_row() -> None:
    empty = dataclasses.replace(RECORD, begin=70)
    assert empty.span("obs", context=3).begin == 66
    assert Commit(stream=0, num_envs=1, capacity=1).span("obs", context=3) == Span(0, 0, 1, Tail(0, 0))


@pytest.mark.parametrize(
    ("end", "tail", "fits"),
    [(32, Tail(0, 9), True), (33, Tail(1, 9), True), (33, Tail(0, 9), False), (32, Tail(1, 9), False),
     (32, Tail(0, 0), False)],
)  # fmt: skip
def test_the_last_row_is_in_the_tail(end: int, tail: Tail, fits: bool) -> None:
    box = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    schema = build(box, box, capacity=100, shard_rows=32, chunk_rows=8)
    assert Span(0, end, 1, tail).ends_in_tail(schema.column("obs")) is fits


def test_a_record_is_parsed_again_only_if_its_bytes_changed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(stream: str) -> dr.ReplayBuffer:
        return dr.ReplayBuffer.open_or_create(tmp_path / "a", LINE, LINE, capacity=9, stream=stream)

    def parsing(directory: str, data: bytes) -> Any:
        parsed.append(os.path.relpath(directory, tmp_path / "a"))
        return attributes(directory, data)

    parsed: list[str] = []
    attributes = metadata.attributes
    monkeypatch.setattr(metadata, "attributes", parsing)
    with opened("theirs") as theirs, opened("ours") as ours:
        parsed.clear()
        ours.checkpoint("a")
        ours.checkpoint("b")
        assert parsed == []
        theirs.add(*[np.zeros(3, np.float32)] * 2, 0.0, np.zeros(3, np.float32), False, False)
        theirs.commit()
        ours.checkpoint("c")
        assert parsed == ["streams/theirs"]
        assert ours.refresh()
