"""Takes the pictures in docs/pictures/ of the page of ``report``: ``python docs/make_pictures.py``.

Needs Atari, selenium and Chromium: ``pip install -e '.[atari,browser]'`` and ``tests/browser/install``.
"""

from __future__ import annotations

import base64
import io
import pathlib
import sys
import tempfile

import numpy as np
from PIL import Image

import diskreplay as dr
from diskreplay.ops.record import record
from diskreplay.report.write import report

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE / "pictures"
sys.path.insert(0, str(HERE.parent / "tests"))

COLORS = 192
TAKEN = {
    "report-light": ("#name", "#whole", 1280, False),
    "report-dark": ("#name", "#whole", 1280, True),
    "whole-light": ("#whole", "#storage", 1280, False),
    "whole-dark": ("#whole", "#storage", 1280, True),
    "store-light": ("#storage", "#foot", 1280, False),
    "narrow-light": ("#name", "#whole", 400, False),
    "narrow-dark": ("#name", "#whole", 400, True),
}
"""By name: from which element to which, the window's width, and whether it is dark."""


def make(folder: pathlib.Path) -> str:
    """A report of 30,000 steps of Pong; the address of a moment in it."""
    store = folder / "pong.replay"
    record("ALE/Pong-v5", store, steps=30_000, atari=True, seed=1, num_envs=2)
    with dr.ReplayBuffer.open(store, sampler=dr.Proportional(), seed=0) as buffer:
        rng = np.random.default_rng(0)
        items = buffer.items()
        age = np.linspace(0, 1, len(items))
        buffer.update_priorities(items, rng.exponential(0.3 + age**4))
        buffer.checkpoint("step-30000", metadata={"step": 30_000, "learner": "dqn-30000.pt"})
    best = report(store, folder / "pong.html").episodes[0]
    return f"{(folder / 'pong.html').as_uri()}#episode={best}&t=412"


def main() -> None:
    from browser.chromium import started

    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, started() as browser:
        url = make(pathlib.Path(name))
        for picture, (first, last, width, dark) in TAKEN.items():
            browser.open(url, width=width, dark=dark)
            browser.wait("return document.querySelector('#screens canvas')?.dataset.step")
            browser.run("document.getElementById('about').textContent = 'ALE/Pong-v5 · runs/pong.replay'")
            top, bottom = (
                browser.run("return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY", one)
                for one in (first, last)
            )
            clip = {"x": 0, "y": max(0, top - 20), "width": width, "height": bottom - top, "scale": 1}
            taken = browser.driver.execute_cdp_cmd(
                "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
            )
            image = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
            image.quantize(COLORS, dither=Image.Dither.NONE).save(TARGET / f"{picture}.png", optimize=True)
            print(f"{picture}.png: {image.width}x{image.height}")


if __name__ == "__main__":
    main()
