"""Handlers that use a buffer and return: they run between changes. See :mod:`interrupts.handlers`."""

from __future__ import annotations

import gc
import pathlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import examples
from helpers.forking import forked
from helpers.line import rows_in
from helpers.odds import chances_of
from helpers.programs import printed
from helpers.threads import beside, held, together
from interrupts.handlers import SIGNALS, SUBJECTS, handled, run

import diskreplay as dr
from diskreplay.engine import forks
from diskreplay.errors import StateError
from diskreplay.ops.verify import verify
from diskreplay.process import locks as interrupts
from diskreplay.process.locks import Lock, held_back, undisturbed

BOX, ACTION = spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(4)
NEVER: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}


@pytest.mark.parametrize("kind", SUBJECTS)
def test_handlers_run_between_changes(tmp_path: pathlib.Path, kind: str) -> None:
    run(SUBJECTS[kind](tmp_path), 5)


@pytest.mark.long
@pytest.mark.parametrize("kind", SUBJECTS)
def test_ten_thousand_handlers(tmp_path: pathlib.Path, kind: str) -> None:
    count = examples(1250, "signals", least=50)
    assert run(SUBJECTS[kind](tmp_path), count, seed=1) >= count // 10


def make(path: Any, **options: Any) -> Any:
    return dr.ReplayBuffer.create(str(path), BOX, ACTION, capacity=64, **{**NEVER, **options})


def fill(buffer: Any, count: int) -> None:
    for number in range(count):
        add(buffer, number)


def add(buffer: Any, number: int) -> None:
    buffer.add(np.full(3, number % 9, np.float32), 1, 0.5, np.full(3, (number + 1) % 9, np.float32), False, False)


@pytest.fixture
def no_handlers() -> Iterator[None]:
    """What a test installs is taken back."""
    with handled(lambda number, frame: None):
        yield


# Between changes


def test_a_handler_that_was_installed_a_moment_ago_waits(no_handlers: None) -> None:
    for number in (signal.SIGUSR1, signal.SIGRTMIN + 3):
        came: list[int] = []
        before = signal.signal(number, lambda number, frame, came=came: came.append(number))
        try:
            with Lock("a lock"):
                signal.raise_signal(number)
                signal.raise_signal(number)
                assert came == []
            assert came == [number]
            signal.raise_signal(number)
            assert came == [number, number]
        finally:
            signal.signal(number, before)


def test_a_handler_that_the_block_installs_stays(no_handlers: None) -> None:
    def mine(number: int, frame: Any) -> None:
        pass

    with held_back():
        signal.signal(signal.SIGUSR1, mine)
    assert signal.getsignal(signal.SIGUSR1) is mine


def test_all_handlers_run_and_are_back_whatever_one_raises(no_handlers: None) -> None:
    came = []

    def raises(number: int, frame: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, raises)

    def send() -> None:
        with held_back():
            for number in SIGNALS:
                signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        send()
    assert came == list(SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == [raises] * len(SIGNALS)


def test_signals_that_have_no_python_handler_stay_as_they_are(no_handlers: None) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with held_back():
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_in_other_threads_nothing_is_held(no_handlers: None) -> None:
    found = []

    def look() -> None:
        with held_back(), Lock("a lock"):
            found.append(signal.getsignal(signal.SIGUSR1))

    together(look)
    assert found == [signal.getsignal(signal.SIGUSR1)]


def test_handlers_run_while_a_lock_is_waited_for(no_handlers: None) -> None:
    """Without a lock of the main thread in hand, and as often as signals come."""
    lock, first, begun, done = Lock("a lock"), Lock("another"), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            begun.set()
            done.wait()

    def handler(number: int, frame: Any) -> None:
        with first:
            done.set()

    signal.signal(signal.SIGALRM, handler)
    with beside(hold):
        begun.wait()
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with lock:
            assert done.is_set()


def test_a_lock_is_waited_for_in_vain(no_handlers: None) -> None:
    lock = Lock("a lock")
    with held(lock):
        assert not lock.acquire(timeout=0)
        assert not lock.acquire(timeout=0.03)
    assert lock.acquire(timeout=0)
    lock.release()
    assert not lock.owned


def test_priorities_given_in_the_first_draw_count(tmp_path: pathlib.Path, no_handlers: None) -> None:
    """The first draw fills the tree with the largest priority so far, once."""
    for turn in range(3):
        with make(tmp_path / str(turn), sampler=dr.Proportional(), seed=turn) as buffer:
            fill(buffer, 40)
            came: list[int] = []

            def give(number: int, frame: Any, buffer: Any = buffer, came: Any = came) -> None:
                buffer.update_priorities([3], [1e6])
                came.append(number)

            signal.signal(signal.SIGALRM, give)
            signal.setitimer(signal.ITIMER_REAL, 2e-4 * (turn + 1))
            buffer.sample(4)
            while not came:
                pass
            chance = chances_of(buffer, [3])
            assert chance[0] > 0.9, chance


@pytest.mark.long
def test_actor_learner_and_handler_do_not_wait_for_each_other(tmp_path: pathlib.Path) -> None:
    """An actor's thread adds, the main thread draws, and its handler makes checkpoints."""
    count = examples(150, "signals", least=30)
    said = printed(
        """
        import os, signal, sys, threading
        import numpy as np
        from gymnasium import spaces
        import diskreplay as dr
        os.fsync = lambda descriptor: None
        sys.setswitchinterval(1e-4)
        rb = dr.ReplayBuffer.create(sys.argv[1], spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(4), capacity=500)
        obs = np.zeros(3, np.float32)
        stop, made = threading.Event(), []

        def act():
            while not stop.is_set():
                rb.add(obs, 1, 0.5, obs, False, False)

        def save(number, frame):
            rb.checkpoint(f"c{len(made)}")
            if len(made) > 1:
                rb.drop_checkpoint(f"c{len(made) - 2}")
            made.append(number)  # last: the next signal comes then, and one within another, and so on, fill the stack

        rb.add(obs, 1, 0.5, obs, False, False)
        actor = threading.Thread(target=act)
        actor.start()
        signal.signal(signal.SIGUSR1, save)
        def send():
            seen = -1
            while not stop.is_set():
                if len(made) > seen:
                    seen = len(made)
                    os.kill(os.getpid(), signal.SIGUSR1)
                stop.wait(0.001)
        threading.Thread(target=send, daemon=True).start()
        while len(made) < int(sys.argv[2]):
            rb.sample(1)
        stop.set()
        actor.join()
        rb.close()
        print(len(made))
        """,
        tmp_path / "store",
        count,
    )
    assert int(said) >= count
    assert verify(str(tmp_path / "store")).ok


# What else comes in on the same thread


class Finalized:
    """Calls something when the collector finds it."""

    def __init__(self, call: Callable[[], object], raised: list[BaseException | None]) -> None:
        self.call, self.raised, self.circle = call, raised, self

    def __del__(self) -> None:
        try:
            self.call()
            self.raised.append(None)
        except BaseException as error:
            self.raised.append(error)


CALLS: dict[str, Callable[[Any], object]] = {
    "add": lambda rb: fill(rb, 1),
    "commit": lambda rb: rb.commit(),
    "checkpoint": lambda rb: rb.checkpoint(f"in {len(rb.checkpoints)}"),
    "length": len,
    "sample": lambda rb: rb.sample(2),
    "update_priorities": lambda rb: rb.update_priorities([1], [2.0]),
    "clear": lambda rb: rb.clear(),
    "close": lambda rb: rb.close(),
}
WITHIN: dict[str, tuple[str, Callable[[Any], object]]] = {
    "add": ("diskreplay.engine.row_buffers.RowBuffers.write", lambda rb: (rb.cut(), fill(rb, 1))),
    "a row that goes on": (
        "diskreplay.engine.row_buffers.RowBuffers.reserve",
        lambda rb: rb.add([2.0] * 3, 1, 0.5, [3.0] * 3, False, False),
    ),
    "sample": (
        "diskreplay.sampling.priorities.Priorities._catch_up",
        lambda rb: (fill(rb, 1), rb.engine.read(rb.draws.draft, 2)),
    ),
    "commit": ("diskreplay.storage.stream.StreamWriter.replace_record", lambda rb: (fill(rb, 1), rb.commit())),
    "checkpoint": ("diskreplay.storage.store.lay_out_checkpoint", lambda rb: rb.checkpoint("out")),
}  # fmt: skip
"""What is called within a change that Python makes, and an operation that makes it."""
ADDING = "add", "a row that goes on", "sample"


def test_a_finalizer_within_add_is_refused(tmp_path: pathlib.Path) -> None:
    finalize(tmp_path, "add", ["commit", "length"])


@pytest.mark.long
@pytest.mark.parametrize("within", WITHIN)
def test_a_finalizer_within_a_change_is_refused_or_right(tmp_path: pathlib.Path, within: str) -> None:
    finalize(tmp_path, within, CALLS)


def finalize(tmp_path: pathlib.Path, within: str, names: Iterable[str]) -> None:
    """The collector finds objects, whose finalizers make calls, in the middle of another one."""
    place, outer = WITHIN[within]
    for name in names:
        call = CALLS[name]
        path = tmp_path / name
        raised: list[BaseException | None] = []
        buffer = make(path, sampler=dr.Proportional())
        fill(buffer, 20)
        buffer.sample(2)
        target, method = place.rsplit(".", 1)
        original = getattr(__import__("pkgutil").resolve_name(target), method)

        def collecting(*arguments: Any, _original: Any = original, _raised: Any = raised, **options: Any) -> Any:
            if not _raised:
                gc.collect()
            return _original(*arguments, **options)

        gc.disable()
        try:
            Finalized(lambda call=call, buffer=buffer: call(buffer), raised)
            with mock.patch(place, collecting):
                outer(buffer)
        finally:
            gc.enable()
        assert raised, f"{place} was not called"
        assert raised[0] is None or isinstance(raised[0], StateError), raised[0]
        if name in ("add", "commit", "checkpoint", "clear", "close") or within in ADDING:
            assert isinstance(raised[0], StateError), f"{name} within {within} was let in"
        rows = 20 + (within != "checkpoint")
        assert len(buffer) == rows
        fill(buffer, 1)
        buffer.close()
        assert verify(str(path)).ok
        assert rows_in(str(path), mode="r+", sampler=dr.Uniform()) == rows + 1


def test_locks_have_one_order() -> None:
    index = Lock("the index")
    writers = Lock("the writers", then=index)
    with writers, index, writers, index:
        pass
    with index, pytest.raises(StateError, match="the writers: this call came out of another one"):
        writers.acquire()
    with writers, index.exclusive, pytest.raises(StateError):
        writers.acquire()
    with index.exclusive, pytest.raises(StateError):
        index.acquire()
    with writers.exclusive, index.exclusive:
        pass
    assert not writers.owned
    assert not index.owned


def test_a_view_of_the_users_own_cannot_commit_within_a_draw(tmp_path: pathlib.Path) -> None:
    class Commits(dr.Transition):
        def draft(self, *arguments: Any) -> Any:
            assert len(buffer) == 10  # asks
            with pytest.raises(StateError, match="came out of another one"):
                buffer.commit()
            return super().draft(*arguments)

    with make(tmp_path / "store", view=Commits()) as buffer:
        fill(buffer, 10)
        assert len(buffer.sample(3)) == 3
        buffer.commit()


def test_a_thread_of_the_package_waits_for_no_buffer(tmp_path: pathlib.Path) -> None:
    """An encoder's finalizer commits while the main thread commits, and waits for what that encoder compresses."""
    raised: list[BaseException | None] = []
    with make(tmp_path / "store") as buffer:
        fill(buffer, 10)

        def from_an_encoder() -> None:
            interrupts.never_wait()
            Finalized(buffer.commit, raised).circle = None  # type: ignore[assignment]

        with buffer.engine.write_lock:
            together(from_an_encoder)
        assert isinstance(raised[0], StateError)
        assert "in a thread of diskreplay" in str(raised[0])
        interrupts._workers.clear()


def test_a_compiler_is_not_disturbed(no_handlers: None) -> None:
    came = []
    signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    with undisturbed(), undisturbed():
        signal.raise_signal(signal.SIGUSR1)
        assert came == []
        assert not gc.isenabled()
    assert came == [signal.SIGUSR1]
    assert gc.isenabled()


# Forks


def test_a_child_of_a_held_main_thread_has_its_handlers(no_handlers: None) -> None:
    def mine(number: int, frame: Any) -> None:
        pass

    signal.signal(signal.SIGUSR1, mine)
    statuses = []

    def check() -> None:
        assert signal.getsignal(signal.SIGUSR1) is mine
        with held_back():
            assert signal.getsignal(signal.SIGUSR1) is not mine
        assert signal.getsignal(signal.SIGUSR1) is mine

    with held_back():
        thread = threading.Thread(target=lambda: statuses.append(forked(check)))
        thread.start()
        thread.join()
    assert statuses == [None]


def test_a_fork_in_the_handler_of_a_fork(tmp_path: pathlib.Path, no_handlers: None) -> None:
    make(tmp_path / "store").close()
    with dr.ReplayBuffer.open(str(tmp_path / "store"), mode="r") as buffer:
        statuses = []

        def check() -> None:
            assert len(buffer) == 0
            assert not buffer.engine.lock.owned

        def fork_again(number: int, frame: Any) -> None:
            statuses.append(forked(check))

        signal.signal(signal.SIGUSR1, fork_again)
        original, sent = forks._take, []

        def take(*arguments: Any) -> Any:
            taken = original(*arguments)
            if not sent:
                sent.append(True)
                signal.raise_signal(signal.SIGUSR1)
            return taken

        with mock.patch.object(forks, "_take", take):
            statuses.append(forked(check))
        assert statuses == [None, None]
        check()
        assert forks._held.forks == []


# The guide


@pytest.mark.long
def test_the_job_of_the_guide_is_preempted_and_goes_on(tmp_path: pathlib.Path) -> None:
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    (program,) = [part.split("```")[0] for part in guide.split("```python\n") if "stopped = []" in part]
    for times in (1, 2):
        sent = f"""
import os, signal, threading
os.chdir({str(tmp_path)!r})
os.fsync = lambda descriptor: None
def send():
    while 'step' not in globals() or len(rb) <= {times}:
        pass
    os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=send, daemon=True).start()
"""
        printed(sent + program.replace("1_000", "10**9"))
        with dr.ReplayBuffer.open(str(tmp_path / "job.replay"), mode="r", checkpoint="latest") as buffer:
            assert len(buffer.checkpoints) == times
            saved = buffer.checkpoint_metadata(buffer.checkpoints[-1])["transitions"]
            assert len(buffer) == saved > times
            assert np.load(buffer.attachment("weights.npy")).any()
        assert verify(str(tmp_path / "job.replay")).ok
