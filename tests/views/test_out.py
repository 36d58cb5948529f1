"""Batches into arrays that a caller gives: those of any other batch, bit for bit; no others are taken."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.configs import CONFIGS, DEFAULT_CHUNKS, WIDE, Config
from helpers.recording import Recording, reopen
from helpers.view_model import VIEWS, check_out, outs

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError

IMAGES = spaces.Dict({"a": spaces.Box(0, 255, (16, 16, 3), np.uint8), "b": spaces.Box(-1, 1, (3,))})


@pytest.mark.long(quick=2)
@pytest.mark.parametrize("config", [c for c in CONFIGS + WIDE + DEFAULT_CHUNKS if "ragged" not in c.name], ids=repr)
@pytest.mark.parametrize("committed", [True, False])
def test_a_batch_is_the_same(path: str, config: Config, committed: bool) -> None:
    """Of frames on disk, in the cache and in RAM; as often as the cache takes them in, and by both ways to draw."""
    with config.create(path) as buffer:
        Recording(config).add(buffer, 80, commit=committed)
        for view in VIEWS:
            buffer.draws.view = buffer.draws.shown = view
            generator = buffer.engine.rng.bit_generator
            for size in (1, 9, 9, 9):
                before = generator.state
                try:
                    batch = buffer.sample(size)
                except NotEnoughDataError:
                    break
                for out in outs(batch, view):
                    generator.state = before
                    assert buffer.sample(size, out=out) is out
                    check_out(out, batch)


def images(path: pathlib.Path, view: Any, rows: int = 40, **options: Any) -> Any:
    """A buffer of episodes of 7 steps."""
    rng = np.random.default_rng(0)

    def obs() -> dict[str, Any]:
        return {"a": rng.integers(0, 256, (16, 16, 3), np.uint8), "b": rng.random(3, np.float32)}

    rb = dr.ReplayBuffer.create(path, IMAGES, spaces.Discrete(4), view=view, capacity=100, seed=1, **options)
    now = obs()
    for step in range(rows):
        following = obs()
        rb.add(now, step % 4, float(step), following, step % 7 == 6, False)
        now = obs() if step % 7 == 6 else following
    return rb


def changed(name: str, to: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda out: dataclasses.replace(out, **{name: to(getattr(out, name))})


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another shape": (changed("reward", lambda array: array[:, :-1]), r"out.reward must be .* \(3, 5\), got"),
    "fewer items": (lambda out: out[:2], r"\(3, 5, .*, got .* \(2, 5, "),
    "another dtype": (changed("reward", lambda array: array.astype(np.float64)), "float32 .*, got float64"),
    "read-only": (changed("next_obs", lambda obs: {**obs, "a": read_only(obs["a"])}), "next_obs.a .* a read-only"),
    "a list": (changed("action", np.ndarray.tolist), "out.action must be a writeable array .* got list"),
    "None": (changed("is_first", lambda array: None), "lacks is_first"),
    "no such leaf": (changed("obs", lambda obs: {"a": obs["a"]}), "lacks obs.b"),
    "one leaf more": (changed("obs", lambda obs: {**obs, "c": obs["b"]}), "has, and .* have not, obs.c"),
    "another column": (changed("extra", lambda extra: {"mine": np.zeros(3)}), "have not, extra.mine"),
    "memory of another": (lambda out: dataclasses.replace(out, next_obs=out.obs), "out.obs.a and out.next_obs.a must"),
    "memory of two leaves": (changed("truncated", lambda array: None), "lacks truncated"),
    "two steps later": (
        lambda out: dataclasses.replace(
            out, obs={**out.obs, "a": (whole := np.zeros((3, 7, 16, 16, 3), np.uint8))[:, :5]},
            next_obs={**out.next_obs, "a": whole[:, 2:]},
        ),
        "must not share memory",
    ),
    "of another class": (lambda out: dr.Batch(**{f.name: 0 for f in dataclasses.fields(dr.Batch)}), "a SequenceBatch"),
    "no batch": (lambda out: np.zeros(3), "must be a SequenceBatch, got ndarray"),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "why"), WRONG.values(), ids=WRONG)
def test_other_arrays_are_refused(tmp_path: pathlib.Path, wrong: Callable[[Any], Any], why: str) -> None:
    with images(tmp_path / "a", dr.Sequence(5), sampler=dr.Counting(dr.Uniform())) as rb:
        out = rb.sample(3)
        before, state = rb.times_sampled(rb.items()), rb.engine.rng.bit_generator.state
        content = out.map(np.copy)
        with pytest.raises(InputError, match=why):
            rb.sample(3, out=wrong(out))
        assert rb.engine.rng.bit_generator.state == state
        np.testing.assert_array_equal(rb.times_sampled(rb.items()), before)
        np.testing.assert_equal(vars(out), vars(content))
        assert rb.sample(3, out=out) is out


@pytest.mark.parametrize(
    ("view", "options", "why"),
    [
        (dr.Sequence(5, across=True), {}, "across=True"),
        (dr.Sequence(5), {"continuity": "flags"}, "continuity='flags'"),
    ],
)
def test_next_observations_that_are_not_those_of_the_next_step(
    tmp_path: pathlib.Path, view: Any, options: Any, why: str
) -> None:
    with images(tmp_path / "a", view, **options) as rb:
        out = rb.sample(3)
        with pytest.raises(InputError, match=f"cannot be out.obs one step later: with {why}"):
            rb.sample(3, out=out.overlapped())
        assert rb.sample(3, out=out) is out


def test_transitions_have_no_steps_to_share(tmp_path: pathlib.Path) -> None:
    with images(tmp_path / "a", dr.Transition()) as rb:
        out = rb.sample(3)
        whole = np.zeros((3, 17, 16, 3), np.uint8)
        out.obs["a"], out.next_obs["a"] = whole[:, :-1], whole[:, 1:]
        with pytest.raises(InputError, match=r"Transition.* shows no consecutive steps"):
            rb.sample(3, out=out)


def test_ragged_columns_have_no_fixed_shape(tmp_path: pathlib.Path) -> None:
    space = spaces.Box(-1, 1, (3,))
    with dr.ReplayBuffer.create(
        tmp_path / "a", space, spaces.Discrete(4), capacity=9, columns={"words": ((None,), np.int32)}
    ) as rb:
        rb.add(np.zeros(3), 0, 0.0, np.zeros(3), False, False, words=[1, 2])
        with pytest.raises(InputError, match=r"extra.words: the items of a ragged column"):
            rb.sample(1, out=rb.sample(1))


def test_arrays_in_any_layout(tmp_path: pathlib.Path) -> None:
    """A learner's own: time first, and part of a larger array."""
    with images(tmp_path / "a", dr.Sequence(5)) as rb:
        batch = rb.sample(3)
        out = batch.map(lambda array: np.zeros((*array.shape[1::-1], *array.shape[2:]), array.dtype).swapaxes(0, 1)
                        if array.ndim > 1 else np.zeros_like(array))  # fmt: skip
        state = rb.engine.rng.bit_generator.state
        expected = rb.sample(3)
        rb.engine.rng.bit_generator.state = state
        assert rb.sample(3, out=out) is out
        np.testing.assert_equal(vars(out), vars(expected))


def test_a_selection_is_drawn_from(tmp_path: pathlib.Path) -> None:
    with images(tmp_path / "a", dr.Sequence(5)) as rb:
        out = rb.sample(3).overlapped()
        within = rb.select("length >= 7")
        assert rb.sample(3, within=within, out=out) is out
        np.testing.assert_equal(rb.get(out.index).reward, out.reward)


def test_what_writing_into_overlapping_arrays_does(tmp_path: pathlib.Path) -> None:
    with images(tmp_path / "a", dr.Sequence(5, pad=False)) as rb:
        out = rb.sample(3, out=rb.sample(3).overlapped())
        assert out.obs["a"].base.shape == (3, 6, 16, 16, 3)
        assert out.next_obs["a"].base is out.obs["a"].base
        out.next_obs["a"][:, 0] = 7
        assert (out.obs["a"][:, 1] == 7).all()


def test_a_reader_that_is_outrun_fills_them_anew(tmp_path: pathlib.Path) -> None:
    config = next(c for c in CONFIGS if c.name == "frames, reset padding")
    recording = Recording(config)
    with config.create(tmp_path / "a") as writer:
        recording.add(writer, 60, commit=True)
        with reopen(config, tmp_path / "a", mode="r", view=dr.Sequence(3), cache_bytes=0) as reader:
            out = reader.sample(2).overlapped()
            recording.add(writer, 60, commit=True)
            assert reader.sample(2, out=out) is out
            check_out(out, reader.get(out.index))
