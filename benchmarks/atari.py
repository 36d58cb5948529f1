"""Our store against the replay buffers people use, on real Atari frames, in one run.

100,000 steps, the four games by turns, episodes intact; 84x84 uint8 frames, stack 4, transitions with ``obs`` and
``next_obs``, batches of 32 and 256. Two parts: sampling times (``contenders``, timed by ``racing`` in interleaved
rounds), bytes on disk. What `add` costs is in ``core.py``.

A buffer that stores stacks takes 5.6 GB for this, so not all fit into memory together: each lives in a process of its
own, as many at a time as memory allows, and ours is raced again in every group, so that each ratio compares times of
the same rounds.

Peers that are not installed are skipped, and the results say so. dm-reverb 0.14 needs TensorFlow 2.15 and numpy 1, so
it gets an environment of its own (``pip install "dm-reverb[tensorflow]==0.14.0"``), named by ``--reverb-python``.
For a quick look: ``--steps 4000 --rounds 2``.
"""

from __future__ import annotations

import os
import pathlib

import contenders
import frames
import harness
import racing
import workload

STEPS = 100_000


def ours(steps: int) -> list[contenders.Contender]:
    window = int(1.25 * steps * workload.FRAME_BYTES)
    return [
        contenders.Contender("**diskreplay**", "diskreplay", step_bytes=4096, in_ram=False),
        contenders.Contender("**diskreplay**, `batch.torch`", "diskreplay", {"torch": True}, 4096, in_ram=False),
        contenders.Contender(
            "**diskreplay**, cache holds the window", "diskreplay", {"cache_bytes": window}, 8192, in_ram=False
        ),
    ]


def sampling(raced: list[racing.Raced], skipped: dict[str, str], steps: int) -> str:
    rows = [
        (
            found.contender.label,
            f"{found.resident / 1e6:,.0f}",
            *(f"{found.ms[batch]:.2f}" for batch in racing.BURSTS),
            *(f"{found.ours[batch] / found.ms[batch]:.2f}" for batch in racing.BURSTS),
            f"{found.cold:.2f}",
        )
        for found in raced
    ]
    text = [
        f"Sampling from {steps:,} steps, page cache warm; ratios are those of diskreplay with its default cache. "
        "Resident memory is that of the contender's whole process, libraries included. Times and ratios are those "
        f"after two passes; the last column is the mean of the first pass, in batches of {racing.COLD}, with all that "
        "comes once.",
        harness.table(("buffer", "resident MB", "32, ms", "256, ms", "ratio 32", "ratio 256", "cold 32, ms"), rows),
        *(f"Skipped: {label}: {reason}." for label, reason in skipped.items()),
        harness.figures(window_in_cache(raced)),
    ]
    return "\n\n".join(text)


MOST_OF_FASTEST = {32: 1.0, 256: 0.75}
"""By batch size."""


def window_in_cache(raced: list[racing.Raced]) -> list[harness.Figure]:
    """With the window in the decoded cache, against the fastest peer in RAM."""
    cached = next((found for found in raced if "cache_bytes" in found.contender.options), None)
    peers = [found for found in raced if found.contender.in_ram]
    if cached is None or not peers:
        return []
    rows = []
    for batch in racing.BURSTS:
        fastest = min(peers, key=lambda found: found.ms[batch])
        label = f"`sample({batch})`, cache holds the window, beside the fastest in RAM: {fastest.contender.label}"
        rows.append(harness.Figure(label, cached.ms[batch], MOST_OF_FASTEST[batch], "ms", fastest.ms[batch]))
    return rows


def disk_bytes(steps: int, scratch: pathlib.Path) -> str:
    """A store of its own for every game."""
    rows, means = [], []
    for name in frames.GAMES:
        path = scratch / f"game-{name}"
        with contenders.create_store(str(path), steps) as buffer:
            for episode in workload.episodes(frames.load(name), steps):
                for step in episode.singles():
                    buffer.add(*step)
        means.append(harness.stored_bytes(path) / steps)
        rows.append((name, f"{means[-1]:.1f}", f"1/{workload.FRAME_BYTES / means[-1]:.1f}", "", ""))
    mean = sum(means) / len(means)
    ratio = workload.FRAME_BYTES / mean
    rows.append(("mean", f"{mean:.1f}", f"1/{ratio:.1f}", "at most 1/40", harness.met(ratio >= 40)))
    return (
        f"Bytes on disk per step, {steps:,} steps a game, random policy: the whole store as `du` counts it "
        f"(frames, actions, rewards, flags, metadata). A raw frame is {workload.FRAME_BYTES:,} bytes.\n\n"
        + harness.table(("game", "bytes a step", "of raw", "target", ""), rows)
    )


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument(
        "--rounds", type=int, default=20, help="rounds of sampling, a burst of each contender a round (default 20)"
    )
    parser.add_argument("--reverb-python", help="interpreter of the environment that has dm-reverb (see above)")
    parser.add_argument("--scratch", help="where to put the stores meanwhile (default: beside the recorded frames)")
    parser.add_argument("--parts", default="sampling,disk", help="some of these only (then nothing is written)")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    frames.ensure(steps=arguments.steps)
    parts = arguments.parts.split(",")
    body, packages = [], harness.versions("diskreplay", "numpy", "numcodecs")
    with harness.scratch(arguments.scratch) as scratch:
        if "sampling" in parts:
            race = (
                ours(arguments.steps),
                contenders.peers(arguments.reverb_python),
                arguments.steps,
                scratch,
                arguments.rounds,
            )
            raced, skipped = racing.race(*race)
            packages += [version for found in raced for version in found.versions]
            body.append(sampling(raced, skipped, arguments.steps))
        if "disk" in parts:
            body.append(disk_bytes(arguments.steps // len(frames.GAMES), scratch))
    full = arguments.steps == STEPS and len(parts) == 2
    harness.write_section("atari", "Atari: 100,000 steps beside the peers", packages, "\n\n".join(body), keep=full)


if __name__ == "__main__":
    main()
