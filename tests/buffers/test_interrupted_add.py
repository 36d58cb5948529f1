"""An interrupt (Ctrl-C) at any line of ``add``: the row was added or was not, and the program goes on."""

import gc
import pathlib
import signal
import sys

import gymnasium
import numpy as np
import pytest
from helpers.effort import stride

import diskreplay as dr
from diskreplay.ops.verify import verify

PACKAGE = str(pathlib.Path(dr.__file__).parent)
STRIDE = stride(53, "lines that are interrupted") * 4
"""Lines between two that are tried; the cases begin at different ones, so that together they try each."""


def observation(row, envs, stacked, shift=0):
    """A stack of the frames of three rows, or the newest alone; every value tells row and environment."""
    frames = np.array([[row - back + shift + 100 * env for back in (2, 1, 0)] for env in range(envs)], np.int32)
    obs = np.broadcast_to(frames[:, :, None, None], (envs, 3, 30, 30)) if stacked else frames[:, -1:]
    return np.array(obs if envs > 1 else obs[0])


def step(row, envs, stacked):
    """Rows 7 and 15 begin with an observation that is not the one before; some next stacks do not follow."""
    shift = 1000 * ((row >= 7) + (row >= 15))
    following = observation(row + 1, envs, stacked, shift)
    if stacked and row % 9 == 8:
        following = following[..., ::-1, :, :].copy()
    ended = np.zeros(envs, bool) if envs > 1 else False
    reward = np.full(envs, row, np.float32) if envs > 1 else float(row)
    return observation(row, envs, stacked, shift), ended * 1, reward, following, ended, ended


def interrupt(rb, arguments, at):
    """Calls ``add`` with a Ctrl-C before the ``at``-th line that is run; whether it was interrupted."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name in ("__exit__", "__enter__"):
            return None
        if event == "line":
            count += 1
            if count == at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    gc.disable()  # what it calls is no part of `add`: an interrupt there is printed and lost
    sys.settrace(trace)
    try:
        rb.add(*arguments)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return False


def compare(rb, steps, envs, stacked):
    """Every transition of the window with the steps that were added."""
    log = rb.engine.streams.written.log
    assert log.end == len(steps)
    found = rb.get(np.arange(log.begin * envs, log.end * envs))
    rows = range(log.begin, log.end)
    np.testing.assert_array_equal(found.reward, np.repeat(rows, envs))
    for name, at in (("obs", 0), ("next_obs", 3)):
        given = [np.reshape(steps[row][at], (envs, *steps[row][at].shape[-3 if stacked else -1 :])) for row in rows]
        np.testing.assert_array_equal(getattr(found, name), np.concatenate(given))
    return len(rb) // envs


@pytest.mark.long
@pytest.mark.own_thresholds  # a commit within add that is interrupted stops the writer
@pytest.mark.parametrize(("envs", "stacked"), [(1, False), (2, False), (1, True), (2, True)])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "rows", [7, 8, 11, 15]
)  # the next one: a cut, a chunk's end with an odd stack, a chunk's end, a cut
def test_every_line(tmp_path, envs, stacked, rows, full):
    space = gymnasium.spaces.Box(-9999, 9999, (3, 30, 30) if stacked else (1,), np.int32)
    steps = [step(row, envs, stacked) for row in range(rows + 3)]
    window = rows if full else 100
    at = 1 + (rows + full + 2 * stacked + envs) % STRIDE
    while True:
        path = tmp_path / f"{at}"
        rb = dr.ReplayBuffer.create(
            path, space, gymnasium.spaces.Discrete(3), capacity=window * envs, num_envs=envs, seed=0,
            chunk_rows={"reward": 4, "obs": 4}, shard_rows=8, frame_stack=3 if stacked else 1, codec="none",
        )  # fmt: skip
        for arguments in steps[:rows]:
            rb.add(*arguments)
        hit = interrupt(rb, steps[rows], at)
        held = len(rb) // envs  # settles what was cut short
        kept = rb.engine.streams.written.log.end
        assert kept in ((rows, rows + 1) if hit else (rows + 1,))
        assert held == compare(rb, steps[:kept], envs, stacked) == min(kept, window)
        for arguments in steps[kept:]:
            rb.add(*arguments)
        compare(rb, steps, envs, stacked)
        rb.close()
        assert not verify(path).problems
        with dr.ReplayBuffer.open(path) as rb:
            assert compare(rb, steps, envs, stacked) == min(len(steps), window)
        if not hit:
            return
        at += STRIDE
