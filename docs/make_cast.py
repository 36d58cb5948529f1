"""Draws docs/pictures/cast.svg: a store that is recorded, killed and resumed. Run it as ``python docs/make_cast.py``.

The commands are run in an empty directory, and the picture shows what they print. It needs Atari (the extra ``atari``).
"""

from __future__ import annotations

import html
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TARGET = pathlib.Path(__file__).resolve().parent / "pictures" / "cast.svg"
RECORD = "diskreplay record ALE/Pong-v5 pong.replay --atari --steps 30000"
COMMANDS = (
    f"timeout -s KILL 10 {RECORD}",
    "diskreplay verify pong.replay",
    f"{RECORD} --resume",
    """python -c "import diskreplay as dr; print(dr.open('pong.replay').sample(32).obs.shape)\"""",
)
LINE, LETTER, MARGIN = 22, 8.5, 18
LONGEST_PAUSE = 2.5
"""Seconds that a command takes in the picture, at most."""
STYLE = """
svg { --paper: #fbfbfa; --ink: #24292f; --rule: #d0d7de; --prompt: #22793a }
@media (prefers-color-scheme: dark) { svg { --paper: #15181d; --ink: #e1e6eb; --rule: #353c45; --prompt: #71cf8b } }
rect { fill: var(--paper); stroke: var(--rule) }
text { fill: var(--ink); font: 14px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
.command { fill: var(--prompt) }
@media (prefers-reduced-motion: no-preference) { text { animation: show 0.1s both } }
@keyframes show { from { opacity: 0 } }
"""

Shown = tuple[str, float]
"""A line, and the second at which it appears."""


def run() -> list[Shown]:
    """Runs the commands one after another, and gives what a terminal would show."""
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    shown, now = [], 0.5
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            shown.append((f"$ {command}", now))
            begun = time.monotonic()
            done = subprocess.run(
                ["bash", "-c", f"{command}\nexit"], cwd=folder, env={**os.environ, "PATH": path}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
            killed = command.startswith("timeout")
            if done.returncode != (137 if killed else 0):
                sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}")
            now += min(time.monotonic() - begun, LONGEST_PAUSE)
            said = "Killed" if killed else done.stdout.rstrip()  # bash adds its own name and a process id
            shown += [(line, now) for line in said.splitlines()]
            now += 1
    return shown


def drawn(shown: list[Shown]) -> str:
    """Gives the picture as SVG. Its lines appear one after another, unless the reader wants no motion."""
    width, height = max(len(line) for line, _ in shown) * LETTER + 2 * MARGIN, len(shown) * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        "<title>A store is recorded, killed and resumed</title>",
        f"<style>{STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
    ]
    for number, (line, second) in enumerate(shown):
        kind = ' class="command"' if line.startswith("$ ") else ""
        place = f'x="{MARGIN}" y="{MARGIN + number * LINE + 15}"'
        parts.append(f'<text{kind} {place} style="animation-delay: {second:.1f}s">{html.escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    TARGET.write_text(drawn(run()))
