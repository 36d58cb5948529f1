"""The page of a store of a million Atari frames: how long it takes to write, how much memory, and how soon it is drawn.

The store is that of ``million.py``; with ``--synthetic`` (or where no frames are recorded) its frames are a square that
moves, which takes no minutes to record. First paint is what Chromium says of the file (``first-contentful-paint``),
the median of several loads; it needs selenium and Chromium (``tests/browser/install``), and is "not measured" without.

For a quick look: ``--steps 65536 --synthetic``. ``--path`` names a store that is there already.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import time

import frames
import harness
import million
import numpy as np
from harness import Figure

STEPS = 1 << 20
LOADS = 7
EPISODE_STEPS = 1000
sys.path.insert(0, str(harness.HERE.parent / "tests"))


# Parts: each is called in a fresh process


def synthetic(path: str, steps: int) -> None:
    """Episodes of a square that moves over 84x84 pixels."""
    import contenders

    rng = np.random.default_rng(0)
    with contenders.create_store(path, steps) as buffer:
        for _ in range(0, steps, EPISODE_STEPS):
            frame = np.zeros((EPISODE_STEPS + 1, 84, 84), np.uint8)
            x, y = rng.integers(0, 76, (2, EPISODE_STEPS + 1))
            for at in range(EPISODE_STEPS + 1):
                frame[at, y[at] : y[at] + 8, x[at] : x[at] + 8] = 200
            last = np.arange(EPISODE_STEPS) == EPISODE_STEPS - 1
            actions, rewards = rng.integers(0, 18, EPISODE_STEPS), rng.integers(-1, 2, EPISODE_STEPS).astype(float)
            buffer.extend(frame[:-1], actions, rewards, frame[1:], last, np.zeros_like(last))


def written(path: str, out: str) -> dict[str, float]:
    """Seconds of a report, its bytes, and the most memory that the process took, imports and all."""
    start = time.perf_counter()
    from diskreplay.report.write import report

    result = report(path, out)
    return {
        "seconds": time.perf_counter() - start,
        "bytes": result.stored_bytes,
        "peak": harness.resident_bytes("VmHWM"),
        "listed": result.listed,
        "played": len(result.episodes),
    }


def viewed(path: str) -> dict[str, float]:
    """Seconds of what the page asks ``view`` for: the whole, and an episode with a strip of its frames."""
    from diskreplay.report.serve import Viewer

    viewer = Viewer(path)
    overview = harness.seconds_of(lambda: viewer.answer("overview", {}), 3)
    keys = viewer.answer("overview", {})["episodes"]["key"]
    strips, counts = [], []
    for key in keys[:: max(1, len(keys) // 20)]:
        episode = viewer.answer("episode", {"key": key})
        asked = {"key": key, "camera": episode["cameras"][0]["name"], "first": "0", "every": "1"}
        start = time.perf_counter()
        counts.append(viewer.answer("strip", asked)["count"])
        strips.append(time.perf_counter() - start)
    return {
        "overview": statistics.median(overview),
        "strip": statistics.median(strips),
        "frames": statistics.median(counts),
    }


def painted(url: str) -> list[float]:
    """Seconds to the first paint with content of each load."""
    from browser.chromium import started

    script = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    seconds = []
    with started() as browser:
        for _ in range(LOADS):
            browser.open(url)
            seconds.append(browser.wait(script) / 1000)
    return seconds


# The report


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--path", help="a store to look at (default: one is made, and removed)")
    parser.add_argument("--synthetic", action="store_true", help="frames of a square that moves")
    arguments = parser.parse_args()
    made_up = arguments.synthetic or not frames.FOLDER.is_dir()
    with harness.scratch() as scratch:
        path, out = arguments.path or str(scratch / "million.replay"), scratch / "million.html"
        if not arguments.path:
            harness.fresh(synthetic if made_up else million.record, path, arguments.steps)
        file, server = harness.fresh(written, path, str(out)), harness.fresh(viewed, path)
        try:
            paint = statistics.median(painted(pathlib.Path(out).as_uri()))
        except (ImportError, FileNotFoundError) as error:
            paint, missing = None, f"\n\nFirst paint was not measured: {error}."
        else:
            missing = ""
    rows = [
        Figure("`report`, imports included", file["seconds"], 10, "s"),
        Figure("resident memory at its peak, imports included", file["peak"] / 1e6, 300, "MB"),
        Figure("the file", file["bytes"] / 1e6, 20, "MB"),
    ]
    if paint is not None:
        rows.append(Figure("first paint of the file in Chromium", paint, 1, "s"))
    kind = "a store that was there" if arguments.path else "frames of a moving square" if made_up else "recorded frames"
    body = (
        f"{arguments.steps:,} steps ({kind}); {file['listed']:,.0f} episodes listed, {file['played']:.0f} to be played."
        f"\n\n{harness.figures(rows)}\n\n"
        f"`view` answers with the whole in {1e3 * server['overview']:.0f} ms, and with a strip of the "
        f"{server['frames']:.0f} frames of an episode in {1e3 * server['strip']:.0f} ms, one request.{missing}"
    )
    keep = arguments.steps == STEPS and not arguments.path
    harness.write_section(
        "report", "The page", harness.versions("diskreplay", "numpy", "pillow", "selenium"), body, keep=keep
    )


if __name__ == "__main__":
    main()
