"""Every format and every kind of store: out, in again, and all that the format can hold is the same."""

from __future__ import annotations

import pathlib

import pytest
from formats.roundtrip import CASES, Case, Episode, check, expected, installed, read

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.verify import verify


def changed_at_the_end(episode: Episode) -> bool:
    """Whether an episode's final observation is another than that of its last step."""
    return any((values[-1, -1] != episode.obs[leaf][-1, -1]).any() for leaf, values in episode.next_obs.items())


@pytest.mark.long(quick=8)
@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("name", [each.name for each in formats.every() if each.read and each.write])
def test_round_trip(name: str, case: Case, path: str, tmp_path: pathlib.Path) -> None:
    holds = installed(name).holds
    case.make(path)
    out, back = tmp_path / "out", tmp_path / "back.replay"
    refused = [
        what for what in ("nested_obs", "nested_action", "empty") if getattr(case, what) and not getattr(holds, what)
    ]
    if refused:
        with pytest.raises(InputError, match=name):
            export(path, out, name, allow_loss=True)
        assert not out.exists()
        return
    exported = export(path, out, name, allow_loss=True)
    before = read(path)
    assert exported.episodes == len(before)
    assert exported.transitions == sum(map(len, before))
    assert formats.guess(out).name == name
    imported = import_dataset(out, back, name)
    wanted = expected(before, holds)
    assert imported.transitions == sum(map(len, wanted))
    assert imported.transitions + imported.dropped == exported.transitions
    check(read(back), wanted, holds, case.history or (case.stacked and holds.stacks))
    assert verify(back).ok
    if holds.layout:
        with dr.ReplayBuffer.open(path, mode="r") as one, dr.ReplayBuffer.open(back, mode="r") as other:
            assert one.schema.action_space == other.schema.action_space
            if not case.stacked or holds.stacks:
                assert one.schema.observation_space == other.schema.observation_space
                assert one.schema.stacks == other.schema.stacks
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.replay", "back.replay", "out"]


@pytest.mark.long(quick=27)
@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("name", [each.name for each in formats.every() if each.write])
def test_what_is_lost_is_said(name: str, case: Case, path: str, tmp_path: pathlib.Path) -> None:
    """Without permission nothing is written that would come back different."""
    holds = installed(name).holds
    case.make(path)
    before = read(path)
    ends = [(bool(episode.terminated[-1]), bool(episode.truncated[-1])) for episode in before]
    lossy = (
        (not holds.final_obs and any(not holds.final_steps or changed_at_the_end(episode) for episode in before))
        or (not holds.truncated and any(truncated for _, truncated in ends))
        or (not holds.unfinished and not all(map(any, ends)))
        or (not holds.columns and case.columns)
        or (not holds.next_obs and case.own_next_obs)
        or (not case.history and not (case.stacked and holds.stacks))
    )
    refused = any(getattr(case, what) and not getattr(holds, what) for what in ("nested_obs", "nested_action", "empty"))
    out = tmp_path / "out"
    if lossy or refused:
        with pytest.raises(InputError, match=name):
            export(path, out, name)
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]
    else:
        assert export(path, out, name).lost == {}
