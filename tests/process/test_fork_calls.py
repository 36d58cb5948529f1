"""What modules register with `diskreplay.process.forks` is called in its order, all of it."""

from __future__ import annotations

from helpers.programs import run

PROGRAM = r"""
import os
from diskreplay.process.forks import at_fork

def say(what, fails=False):
    def call():
        os.write(1, f"{what}\n".encode())  # whole lines: parent and child say something at once
        if fails:
            raise KeyboardInterrupt(what)
    return call

for name in "below", "above":
    at_fork(before=say(f"before, {name}", name == "above"), in_parent=say(f"parent, {name}", True),
            in_child=say(f"child, {name}", name == "below"))
if pid := os.fork():
    os.waitpid(pid, 0)
else:
    os._exit(0)
"""


def test_calls_come_in_the_order_of_the_rooms() -> None:
    said = run(PROGRAM)
    assert said.returncode == 0
    lines = said.stdout.splitlines()
    assert lines[:2] == ["before, above", "before, below"]
    for where in "parent", "child":
        assert [line for line in lines if line.startswith(where)] == [f"{where}, below", f"{where}, above"]
    assert said.stderr.count("KeyboardInterrupt") >= 3  # parent and child write at once: words are whole, lines are not
