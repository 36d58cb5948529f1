"""A crash at every operation of a checkpoint with files: it is whole, with the files of its rows, or not there."""

from __future__ import annotations

import pytest
from helpers import tale as tales
from helpers.crashing import PATH
from helpers.effort import stride

import diskreplay as dr
from diskreplay.storage import attachments, checkpoint_arrays


class Tale(tales.Tale):
    """Rows, and a file that says how many they were."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, stride(1800, "crash points"))

    @staticmethod
    def seen(buffer: dr.ReplayBuffer) -> tales.Seen:
        """The rows."""
        return [(episode.start, episode.stop) for episode in buffer.episodes]

    def touch(self, buffer: dr.ReplayBuffer) -> None:
        buffer.add([1e6], 0, 1.0, [1e6 + 1], False, False)

    def checkpoint(self, name: str, keep: int | None = None) -> None:
        kept = [one for one in self.checkpoints if one.startswith("kept")]
        going = kept[: len(kept) + 1 - keep] if keep else []
        self.unsure |= {name: self.seen(self.buffer), **{one: self.checkpoints.pop(one) for one in going}}
        with self.coming():
            rows = f"{len(self.buffer)} rows ".encode()
            self.buffer.checkpoint(
                name, attachments={"learner": lambda file: [file.write(rows * 400) for _ in range(3)], "note": rows},
                keep=keep,
            )  # fmt: skip
        self.checkpoints[name] = self.unsure.pop(name)
        for one in going:
            del self.unsure[one]

    def check_checkpoints(self, disk, names):
        super().check_checkpoints(disk, names)
        for name in names:
            with dr.ReplayBuffer.open(PATH, mode="r", checkpoint=name, files=disk) as then:
                assert then.restored.name == name
                rows = f"{len(then)} rows ".encode()
                with then.attachment("learner") as learner, then.attachment("note") as note:
                    assert learner.read() == rows * 1_200
                    assert note.read() == rows


a_life = tales.scripted(
    "create, rows 3, checkpoint one, rows 2, checkpoint two, drop one, rows 1, checkpoint one, drop one, reopen two,"
    "rows 4, close"
)
"""Checkpoints with files, dropped, made again by their names, gone back to."""


def kept(tale: Tale) -> None:
    """Each checkpoint drops older ones, and leaves those that another call made."""
    tale.create()
    tale.checkpoint("by hand")
    for number in range(4):
        tale.rows(2)
        tale.checkpoint(f"kept-{number}", keep=2)
    assert sorted(tale.checkpoints) == ["by hand", "kept-2", "kept-3"]
    tale.close()


@pytest.mark.long
@pytest.mark.parametrize("life", [a_life, kept], ids=["a_life", "kept"])
def test_a_checkpoint_has_its_files_or_is_not_there(life, monkeypatch):
    monkeypatch.setattr(checkpoint_arrays, "CHUNK_ROWS", 1 << 10)  # several chunks and shards of each file
    monkeypatch.setattr(attachments, "SHARD_BYTES", 1 << 12)
    tale = Tale(capacity=100)
    life(tale)
    assert tale.points > 100
