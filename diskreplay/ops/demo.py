"""The demo of ``make demo``: real Pong frames recorded, sampled, checkpointed, reopened, inspected and exported.

Every figure that is said is measured while it runs. It writes into one directory and replaces there only what an
earlier demo wrote.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil
import time
from collections.abc import Callable

import numpy as np

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.errors import InputError, OpenError
from diskreplay.ops.convert import export
from diskreplay.ops.inspect import Facts, inspect
from diskreplay.ops.record import Report, record
from diskreplay.ops.show import show
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_path
from diskreplay.storage.store import Store
from diskreplay.views.batch import Batch

STEPS = 20_000
STORE, SHEET, DATASET = "pong.replay", "pong.png", "pong.hdf5"
BATCHES = 200

Say = Callable[[str], None]


def demo(
    directory: PathLike, *, steps: int = STEPS, say: Say = print, show_facts: Callable[[Facts], None] | None = None,
    progress: Report | None = None,
) -> bool:  # fmt: skip
    """Run the demo in ``directory``, which is made when it is missing.

    Args:
        directory: the directory that takes ``pong.replay``, ``pong.png`` and ``pong.hdf5``.
        steps: the number of steps to record, at least 256.
        say: a function that takes each line of the story.
        show_facts: a function that takes what ``inspect`` found, to print it.
        progress: the progress of the recording.

    Returns:
        False when a signal stopped the recording.

    Raises:
        InputError: when ``directory`` holds a ``pong.replay`` that is no store, and so is not the demo's.
        ModuleNotFoundError: when ale-py is not installed.
    """
    started = time.perf_counter()
    folder = pathlib.Path(checked_path(directory, "directory"))
    store = folder / STORE
    clear(folder)
    say(f"1. Recording {steps:,} steps of real Pong (ALE/Pong-v5, random policy, 84x84 grey) into {store}")
    recorded = record("ALE/Pong-v5", store, steps=steps, atari=True, progress=progress)
    if recorded.stopped:
        return False
    say(
        f"   {recorded.new_steps / recorded.seconds:,.0f} steps/s, emulator included; {recorded.new_episodes} episodes "
        f"ended; {_mb(recorded.raw_bytes)} in {_mb(recorded.stored_bytes)} on disk: {recorded.ratio:.0f}x smaller"
    )
    say("2. Sampling transitions with 4 stacked frames, obs and next_obs, made from single frames on disk")
    with ReplayBuffer.open(store, seed=1) as buffer:
        for line in _sampling_speed(buffer):
            say(f"   {line}")
        say("3. Checkpoint 'demo', then one more batch, which the reopened store will have to repeat")
        before = time.perf_counter()
        buffer.checkpoint("demo", metadata={"steps": steps})
        say(f"   written in {_ms(before)}")
        expected = buffer.sample(256)
    before = time.perf_counter()
    with ReplayBuffer.open(store, checkpoint="demo") as buffer:
        opened = _ms(before)
        same = _same(expected, buffer.sample(256))
        say(f"4. Reopened at the checkpoint in {opened}: the next batch is {'bit-identical' if same else 'DIFFERENT'}")
    say(f"5. diskreplay inspect {store}")
    facts = inspect(store)
    if show_facts:
        show_facts(facts)
    checked = verify(store)
    say(
        f"6. diskreplay verify: {checked.chunks:,} chunks, {_mb(checked.bytes)}, in {1000 * checked.seconds:.0f} ms: "
        f"{'no problem' if checked.ok else f'{len(checked.problems)} problems'}"
    )
    sheet = show(store, folder / SHEET)
    say(f"7. {sheet.file}: {sheet.frames} frames of an episode of {sheet.length:,} steps, as a contact sheet")
    exported = export(store, folder / DATASET, "d4rl")
    say(
        f"8. {folder / DATASET}: D4RL dataset of {exported.transitions:,} transitions, {_mb(exported.stored_bytes)}, "
        f"in {exported.seconds:.1f} s"
    )
    say(f"Done in {time.perf_counter() - started:.0f} s. Everything is in {folder}{os.sep}")
    say(f"To see it in a browser: diskreplay report {shlex.quote(str(store))} -o pong.html")
    return True


def clear(folder: pathlib.Path) -> None:
    """Make the directory and remove what an earlier demo left in it; other files stay.

    Raises InputError when ``pong.replay`` in it is no store: whatever that is, the demo did not write it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / STORE
    if os.path.lexists(store):
        try:
            Store(str(store.absolute()), LocalFiles())
        except OpenError as error:
            raise InputError(
                f"{str(store)!r} was not written by the demo, and stays; name another directory"
            ) from error
        shutil.rmtree(store)
    for name in (SHEET, DATASET):
        (folder / name).unlink(missing_ok=True)


def _sampling_speed(buffer: ReplayBuffer) -> list[str]:
    lines = []
    for size in (32, 256):
        times = []
        for _ in range(BATCHES):
            before = time.perf_counter()
            batch = buffer.sample(size)
            times.append(time.perf_counter() - before)
        median = 1000 * float(np.median(times))
        lines.append(f"sample({size}): {median:.2f} ms (median of {BATCHES}), obs {batch.obs.shape} {batch.obs.dtype}")
    return lines


def _same(one: Batch, other: Batch) -> bool:
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "discount", "index", "weight")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _ms(started: float) -> str:
    return f"{1000 * (time.perf_counter() - started):.0f} ms"
