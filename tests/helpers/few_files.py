"""Attachments of many shards, of which few are open at a time: what was unlinked is gone then."""

from __future__ import annotations

import pytest

from diskreplay.storage import attachments, checkpoint_arrays, handles


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "SHARD_BYTES", checkpoint_arrays.CHUNK_ROWS)
    monkeypatch.setattr(attachments, "READ_BYTES", 1 << 10)
    monkeypatch.setattr(handles, "POOL", handles.Pool(lambda: 1))
