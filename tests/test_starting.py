"""What a process imports, and when: nothing that it does not need, and nothing in the middle of a call of a buffer."""

from __future__ import annotations

import json
import pathlib

import pytest
from helpers.programs import printed

OURS = "sorted(name for name in sys.modules if name.partition('.')[0] in ('diskreplay', 'diskreplay_cli'))"
LARGE = {"gymnasium", "h5py", "numcodecs", "numpy", "obstore", "torch", "zarr"}

USES = f"""
import json, sys
import numpy as np
import gymnasium
import diskreplay as dr
box, discrete = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
options = dict(capacity=20, sampler=dr.Proportional(), view=dr.Transition(2), later={{"latent": np.float32}})
with dr.ReplayBuffer.create(sys.argv[1], box, discrete, **options) as rb:
    before = {OURS}
    rb.begin_episode(seed=1)
    for step in range(30):
        rb.add(np.zeros(3, np.float32), 0, 0.0, np.zeros(3, np.float32), step % 7 == 6, False)
    batch = rb.sample(4)
    rb.update_priorities(batch.index, np.ones(4))
    rb.write("latent", batch.index, np.zeros(4, np.float32))
    rb.extend(*(np.zeros((2, 3)), [0, 0], [0.0, 0.0], np.zeros((2, 3)), [False] * 2, [False] * 2))
    rb.commit(), rb.checkpoint("one"), rb.drop_checkpoint("one"), rb.get(rb.items()), rb.cut(), rb.clear()
    print(json.dumps([before, {OURS}]))
"""


ORDINARY = f"""
import json, sys
import numpy as np
import gymnasium
import diskreplay as dr
spaces = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
for make in (dr.ReplayBuffer.create, dr.ReplayBuffer.open_or_create):
    with make(sys.argv[1], *spaces, capacity=5000, sampler=dr.Proportional()) as rb:
        for step in range(500):
            rb.add(np.zeros(3, np.float32), 0, 0.0, np.zeros(3, np.float32), step % 7 == 6, False)
        rb.update_priorities(rb.sample(4).index, np.ones(4))
with dr.open(sys.argv[1]) as rb:
    rb.sample(4)
print(json.dumps([{OURS}, sorted(sys.modules)]))
"""


def run(program: str, *arguments: str) -> list[list[str]]:
    """What the program prints, which is JSON."""
    return json.loads(printed(program, *arguments))


def test_importing_it_imports_nothing_more() -> None:
    ours, every = run(f"import json, sys, diskreplay\nprint(json.dumps([{OURS}, sorted(sys.modules)]))")
    assert ours == ["diskreplay"]
    assert not LARGE.intersection(every)


def test_help_needs_no_engine() -> None:
    program = "import json, sys, diskreplay_cli.main as _, diskreplay_cli.start as _"
    ours, every = run(f"{program}\nprint(json.dumps([{OURS}, sorted(sys.modules)]))")
    assert {name for name in ours if name.startswith("diskreplay.")} == {"diskreplay.errors", "diskreplay.formats"}
    assert not LARGE.intersection(every)


@pytest.mark.long
def test_a_program_imports_no_room_that_it_does_not_use(tmp_path: pathlib.Path) -> None:
    ours, every = run(ORDINARY, str(tmp_path / "a.replay"))
    rooms = {name.split(".")[1] for name in ours if "." in name}
    assert not rooms & {"compat", "formats", "jax", "ops", "ray", "recording", "remote", "report", "torch"}
    assert LARGE.intersection(every) == {"gymnasium", "numpy"}


@pytest.mark.long
def test_no_call_of_an_open_buffer_imports_a_module(tmp_path: pathlib.Path) -> None:
    """A signal's handler may come back into the buffer within a call: it must not meet a module that is half there."""
    before, after = run(USES, str(tmp_path / "a.replay"))
    assert set(after) <= set(before)
