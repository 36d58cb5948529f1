"""Ragged columns in every view: each step shows what ``get`` says of its transition."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr

SPACE = spaces.Dict({"text": spaces.Text(9, min_length=0), "at": spaces.Box(-1, 1, (2,), np.float32)})
FORMS: list[Any] = [dr.Pad(), dr.Pad(to=6), dr.Pad(multiple=4, side="left"), "lists", {"tokens": "lists"}]


def fill(rb: dr.ReplayBuffer, rows: int, num_envs: int) -> None:
    rng = np.random.default_rng(0)
    rb.observation_space.seed(1)

    def observations() -> dict[str, Any]:
        each = [rb.observation_space.sample() for _ in range(num_envs)]
        return {"text": [one["text"] for one in each], "at": np.stack([one["at"] for one in each])}

    obs = observations()
    for _ in range(rows):
        following, ends = observations(), rng.random(num_envs) < 0.15
        tokens = [rng.integers(1, 99, rng.integers(0, 12)) for _ in range(num_envs)]
        rb.add(obs, [0] * num_envs, [0.0] * num_envs, following, ends, [False] * num_envs, tokens=tokens)
        fresh = observations()
        obs = {
            "text": [b if end else a for a, b, end in zip(following["text"], fresh["text"], ends, strict=True)],
            "at": np.where(ends[:, None], fresh["at"], following["at"]),
        }


def rows_of(shown: Any) -> list[list[int]]:
    return [row.tolist() for row in (shown.lists() if isinstance(shown, dr.Padded) else shown)]


def leaves(batch: Any) -> list[Any]:
    return [batch.obs["text"], batch.next_obs["text"], batch.extra["tokens"]]


@pytest.mark.long(quick=4)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    "view",
    [dr.Transition(), dr.Transition(n_step=3), dr.Sequence(length=4, burn_in=2, stride=3), dr.PaddedEpisodes(7)],
    ids=lambda view: type(view).__name__,
)
@pytest.mark.parametrize("committed", [True, False])
def test_each_step_is_that_of_its_transition(path: str, view: Any, form: Any, committed: bool) -> None:
    with dr.ReplayBuffer.create(
        path, SPACE, spaces.Discrete(2), capacity=90, num_envs=3, columns={"tokens": ((None,), np.int16)}, view=view,
        chunk_rows={"tokens": 8, "obs/text": 8}, ragged=form, cache_bytes=0 if committed else None, seed=0,
    ) as rb:  # fmt: skip
        fill(rb, 60, 3)
        if committed:
            rb.commit()
        batch = rb.get(rb.items())
        with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition(), ragged="lists") as one:
            if not committed:
                return check_shapes(batch, form)
            steps = batch.mask if hasattr(batch, "mask") else np.ones((len(batch), 1), bool)
            ids = batch.index[:, None] + 3 * np.arange(steps.shape[1])
            last = ids if not isinstance(view, dr.Transition) else last_of(one, ids[:, 0], view.n_step)[:, None]
            same = one.get(ids[steps])
            after = one.get(last[steps])
            wanted = [rows_of(same.obs["text"]), rows_of(after.next_obs["text"]), rows_of(same.extra["tokens"])]
        for name, shown, want in zip(("text", "next text", "tokens"), leaves(batch), wanted, strict=True):
            got = list(itertools.compress(rows_of(shown), steps.reshape(-1).tolist()))
            most = form.to if isinstance(form, dr.Pad) and form.to else None
            assert got == [row[:most] for row in want], name
        check_shapes(batch, form)


def last_of(rb: dr.ReplayBuffer, ids: Any, n_step: int) -> Any:
    """The last transition of each that takes up to so many steps."""
    found = []
    held = {int(at): at for at in rb.items()}
    starts = {(e.env, e.start) for e in rb.episodes}
    ended = {int(at): bool(end) for at, end in zip(rb.items(), rb.get(rb.items()).terminated, strict=True)}
    for at in ids.tolist():
        last = at
        for _ in range(n_step - 1):
            following = last + 3
            if ended[last] or following not in held or (following % 3, following // 3) in starts:
                break
            last = following
        found.append(last)
    return np.array(found)


def check_shapes(batch: Any, form: Any) -> None:
    for shown in leaves(batch)[:2] if isinstance(form, dict) else leaves(batch):
        if form == "lists":
            assert isinstance(shown, dr.Lists)
            continue
        how = form if isinstance(form, dr.Pad) else dr.Pad()
        assert (shown.values.shape, shown.values.shape[-1] % how.multiple) == (shown.mask.shape, 0)
        assert how.to is None or shown.values.shape[-1] == how.to
        assert not shown.values[~shown.mask].any()
        assert (shown.mask.sum(axis=-1) == shown.length).all()
        if how.side == "left":
            assert (np.diff(shown.mask.astype(int), axis=-1) >= 0).all()


TIMES = dr.DeltaTimestamps({"text": [-1.0, 0.0, 1.0], "tokens": [0.0, 2.0]}, fps=1)
KEYS: list[Any] = [slice(2), slice(1, None, 2), slice(0), [3, 0], np.array([-1, 2, 2]), np.arange(5) % 2 == 0]


@pytest.mark.parametrize("form", ["lists", dr.Pad(to=12)], ids=str)
@pytest.mark.parametrize(
    "view", [dr.Transition(), dr.Sequence(length=4), dr.PaddedEpisodes(7), TIMES], ids=lambda view: type(view).__name__
)
def test_some_entries_of_a_batch_keep_all_their_rows(path: str, view: Any, form: Any) -> None:
    with dr.ReplayBuffer.create(
        path, SPACE, spaces.Discrete(2), capacity=90, num_envs=3, columns={"tokens": ((None,), np.int16)}, view=view,
        ragged=form, seed=0,
    ) as rb:  # fmt: skip
        fill(rb, 60, 3)
        batch = rb.get(rb.items()[:5])
        for key in KEYS:
            some, wanted = batch[key], rb.get(batch.index[key])
            assert (len(some), some.reward.tolist()) == (len(batch.index[key]), wanted.reward.tolist())
            for shown, want in zip(shown_leaves(some), shown_leaves(wanted), strict=True):
                assert rows_of(shown) == rows_of(want)


def shown_leaves(batch: Any) -> list[Any]:
    return [batch.obs["text"], batch.extra["tokens"], *([] if batch.next_obs is None else [batch.next_obs["text"]])]


@pytest.mark.parametrize("view", [dr.Transition(), dr.Sequence(length=4)], ids=lambda view: type(view).__name__)
def test_a_mixture_gives_lists_in_the_order_of_its_index(path: str, view: Any) -> None:
    parts = [
        dr.ReplayBuffer.create(
            f"{path}.{number}", SPACE, spaces.Discrete(2), capacity=90, num_envs=3, view=view, ragged="lists",
            columns={"tokens": ((None,), np.int16)}, seed=number,
        )
        for number in range(2)
    ]  # fmt: skip
    for number, part in enumerate(parts):
        fill(part, 20 + number, 3)
    with dr.Mixture(parts) as mixture:
        index = mixture.sample(8).index[[7, 0, 5, 1, 6, 2]]
        batch = mixture.get(index)
        for at, entry in enumerate(index):
            one = mixture.get([entry])
            for shown, want in zip(leaves(batch[[at]]), leaves(one), strict=True):
                assert rows_of(shown) == rows_of(want)
        assert [rows_of(shown) for shown in leaves(batch[[]])] == [[]] * len(leaves(batch))


def test_batches_come_in_every_way(path: str) -> None:
    with dr.ReplayBuffer.create(
        path, SPACE, spaces.Discrete(2), capacity=90, num_envs=3, columns={"tokens": ((None,), np.int16)}, seed=0
    ) as rb:
        fill(rb, 40, 3)
        rb.commit()
        whole = {int(at): rows_of(rb.get([at]).extra["tokens"]) for at in rb.items()}
        with rb.loader(8) as loader:
            batches = [next(loader) for _ in range(3)]
        for batch in [*batches, *rb.shuffled(16), rb.sample(8)[:5], rb.sample(8)[rb.sample(8).terminated]]:
            assert rows_of(batch.extra["tokens"]) == [whole[at][0] for at in batch.index.tolist()]
        batch = rb.sample(8)
        assert batch["tokens"] is batch.extra["tokens"]
        assert "Padded(values=int16[8, " in repr(batch)
        assert "tokens" in batch._repr_html_()
        assert rb._repr_html_()
        rb.commit()
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb, pickle.loads(pickle.dumps(rb)) as copy:
        assert isinstance(copy.sample(4).extra["tokens"], dr.Lists)
