"""Datasets as other projects write them come in value for value; all that is not read is named."""

from __future__ import annotations

import dataclasses
import io
import pathlib
from typing import Any

import numpy as np
import PIL.Image as image
import pytest
from formats.foreign import files
from formats.foreign.cases import LAYOUTS, TAKEN, Case, known_of
from formats.foreign.episodes import dreamer_3, uuid
from formats.foreign.known import Known, Steps, Written, check, steps
from formats.foreign.plan import Layout, Plan

from diskreplay.errors import InputError
from diskreplay.ops.convert import import_dataset

TOLD = [(layout, told) for layout in LAYOUTS for told in dict.fromkeys(layout.told)]
UNTOLD = [(layout, told) for layout in LAYOUTS for told in layout.untold]


def case_of(layout: Layout, told: str, variant: int, outcome: str = TAKEN) -> Case:
    """Three episodes of a layout, in one file or in several."""
    rng = np.random.default_rng(variant)
    plan = Plan(layout.following and variant % 2 == 1, told, variant, 6, variant)
    parts = (1, 1, 1) if layout.folder else None
    known = tuple(layout.known(each) for each in known_of(layout, plan, 3, parts, rng))
    return Case(layout, known, plan, parts, variant, (), "", False, "", outcome)


@pytest.mark.parametrize("variant", range(3))
@pytest.mark.parametrize(("layout", "told"), TOLD, ids=[f"{layout.name}-{told}" for layout, told in TOLD])
def test_a_layout_comes_in(layout: Layout, told: str, variant: int, tmp_path: pathlib.Path) -> None:
    check(case_of(layout, told, variant).write(tmp_path), tmp_path / "a.replay")


@pytest.mark.parametrize(("layout", "told"), UNTOLD, ids=[f"{layout.name}-{told}" for layout, told in UNTOLD])
def test_what_no_one_told_is_refused(layout: Layout, told: str, tmp_path: pathlib.Path) -> None:
    written = case_of(layout, told, 0).write(tmp_path)
    with pytest.raises(InputError) as failure:
        import_dataset(written.path, tmp_path / "a.replay", **written.options)
    assert "\n" not in str(failure.value)
    assert [each.name for each in tmp_path.iterdir()] == [written.path.name]


def ramp(count: int, start: int = 0, **more: Any) -> Known:
    """An episode whose step t has observation, action and reward t."""
    rows = np.arange(start, start + count + 1)
    obs = np.repeat(rows[:, None], 3, 1).astype(np.float32)
    return Known({"": obs}, rows[:-1, None].astype(np.float32), rows[:-1].astype(np.float32), **more)


def test_chunks_of_two_workers(tmp_path: pathlib.Path) -> None:
    """Chains of DreamerV3 lie interleaved by time; an episode that goes on in a later chunk of its chain is one."""
    wanted: list[Steps] = []
    for worker, known in enumerate(([ramp(7, terminated=True), ramp(4, 20)], [ramp(9, 40), ramp(2, 60)])):
        named = [Known({"image": each.obs[""]}, each.action, each.reward, each.terminated) for each in known]
        for number, file in enumerate(dreamer_3(named, Plan(variant=2)).values()):
            time, place = f"20240229T{number * 2 + worker:06d}F000000", 9 * worker + number
            name = f"{time}-{uuid(place)}-{uuid(place + 1)}-{len(file.arrays['reward'])}.npz"
            files.write(tmp_path / name, file.arrays)
            wanted += [dataclasses.replace(each, extra={}) for each in file.episodes]
    orders = [wanted, [wanted[0], wanted[2], wanted[1], wanted[3]], [wanted[2], wanted[3], wanted[0], wanted[1]]]
    target = tmp_path.parent / f"{tmp_path.name}.replay"
    for number, order in enumerate(orders):
        written = Written(tmp_path, order, may=(r".*stepid", ".*is_last"))
        try:
            check(written, target.with_suffix(f".{number}.replay"))
        except AssertionError:
            if number == len(orders) - 1:
                raise
        else:
            return


def test_an_abandoned_episode_of_dreamer_3(tmp_path: pathlib.Path) -> None:
    """One that was never finished ends before the next first row; its last row is no transition."""
    known = [Known({"image": each.obs[""]}, each.action, each.reward) for each in (ramp(4), ramp(3, 9))]
    ((name, file),) = dreamer_3(known, Plan(variant=6)).items()
    file.arrays["is_last"][4] = False
    files.write(tmp_path / f"{name}.npz", file.arrays)
    wanted = [dataclasses.replace(each, extra={}) for each in file.episodes]
    check(Written(tmp_path, wanted, may=(".*stepid", ".*is_last")), tmp_path.parent / f"{tmp_path.name}.replay")


def test_compressed_images_of_act(tmp_path: pathlib.Path) -> None:
    """MarkFzp/act-plus-plus ``compress_data.py``: padded JPEG of OpenCV, which takes the channels as blue, green, red.

    It and its reader swap nothing, so what OpenCV decodes is what was given.
    """
    rng = np.random.default_rng(0)
    known, packed, decoded = ramp(4), [], []
    for _ in range(4):
        file = io.BytesIO()
        frame = np.kron(rng.integers(0, 256, (2, 2, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
        image.fromarray(frame[..., ::-1]).save(file, "JPEG", quality=50)
        packed.append(np.frombuffer(file.getvalue(), np.uint8))
        decoded.append(np.asarray(image.open(file))[..., ::-1])
    padded = np.zeros((4, max(map(len, packed))), np.uint8)
    for row, each in zip(padded, packed, strict=True):
        row[: len(each)] = each
    lengths = np.array([[len(each) for each in packed]], np.float32)
    files.write(tmp_path / "episode_0.hdf5", {
        "observations/qpos": known.obs[""][:-1], "observations/images/top": padded, "action": known.action,
        "attrs/sim": True, "attrs/compress": True, "compress_len": lengths,
    })  # fmt: skip
    obs = {"qpos": known.obs[""], "images/top": np.stack([*decoded, decoded[-1]])}
    wanted = steps(
        Known(obs, known.action, known.reward), final=False, terminated=False, truncated=True, reward=False
    )  # fmt: skip
    written = Written(tmp_path, [wanted], may=(r"(.*/)?(.*\.)?attrs/(sim|compress)", "(.*/)?compress_len"))
    check(written, tmp_path.parent / f"{tmp_path.name}.replay")


def test_trajectories_that_go_on_after_success(tmp_path: pathlib.Path) -> None:
    """ManiSkill may go on then: each step that was terminated ends an episode, with its next observation."""
    known, done = ramp(5), np.arange(5) > 1
    arrays = {
        "traj_0/obs": known.obs[""], "traj_0/actions": known.action, "traj_0/rewards": known.reward,
        "traj_0/terminated": done, "traj_0/success": done, "traj_0/truncated": np.zeros(5, bool),
    }  # fmt: skip
    files.write(tmp_path / "a.h5", arrays)
    spans = ((0, 3), (3, 4), (4, 5))
    wanted = [
        steps(
            ramp(stop - start, start),
            final=True,
            terminated=True,
            truncated=False,
            extra={"success": [done[start:stop]]},
        )
        for start, stop in spans
    ]
    check(Written(tmp_path / "a.h5", wanted, {"success": {"traj_0/success"}}), tmp_path / "a.replay")
