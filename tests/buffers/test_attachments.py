"""Files that a checkpoint takes along, what a buffer was opened at, and how many checkpoints are kept."""

import errno
import io
import json
import os
import pickle
import shutil

import numpy as np
import pytest
from helpers.commands import command
from helpers.damage import flip
from helpers.line import LINE, TURN, add, rows_in
from helpers.line import create as made
from helpers.testing import FaultyFiles
from helpers.threads import together

import diskreplay as dr
from diskreplay.engine import checkpointing
from diskreplay.errors import CheckpointError, CorruptionError, DiskFullError, InputError, SchemaError, StateError
from diskreplay.ops.checkpoints import checkpoints
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify


def read(rb, name, checkpoint=None):
    with rb.attachment(name, checkpoint) as file:
        return file.read()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.replay"


@pytest.fixture
def rb(path):
    with made(path) as buffer:
        add(buffer, 5)
        yield buffer


def leftovers(path):
    return [name for _, folders, files in os.walk(path) for name in (*folders, *files) if name.startswith(".tmp")]


def test_a_program_goes_on_with_its_learner(path):
    weights = {"kernel": np.arange(30_000.0), "step": 7}
    with made(path) as rb:
        assert rb.restored is None
        add(rb, 5)
        rb.checkpoint("step-7", {"step": 7}, attachments={"learner.pickle": lambda file: pickle.dump(weights, file)})
        assert rb.restored is None
        with rb.attachment("learner.pickle", checkpoint="step-7") as file:
            assert pickle.load(file)["step"] == 7
    with dr.ReplayBuffer.open_or_create(path, LINE, TURN, capacity=100, checkpoint="latest") as rb:
        assert (rb.restored.name, rb.restored.metadata) == ("step-7", {"step": 7})
        with rb.attachment("learner.pickle") as file:
            assert file.seek(3) == 3
            file.seek(0)
            np.testing.assert_array_equal(pickle.load(file)["kernel"], weights["kernel"])
    with dr.ReplayBuffer.open(path) as rb:
        assert rb.restored is None
        with pytest.raises(CheckpointError, match="not opened at a checkpoint"):
            rb.attachment("learner.pickle")
    assert not verify(path).problems


@pytest.mark.parametrize("given", [b"", b"bytes", bytearray(b"array"), memoryview(b"view")])
def test_bytes_are_taken_as_they_are(rb, given):
    rb.checkpoint("one", attachments={"a": given})
    assert read(rb, "a", "one") == bytes(given)


@pytest.mark.parametrize(
    ("given", "match"),
    [(["a"], "mapping"), ({"a": "text"}, "must be bytes, or a function"), ({"a": {"weights": 1}}, "torch.save"),
     ({"../a": b""}, "attachment"), ({"": b""}, "attachment"), ({"zarr.json": b""}, "attachment"), ({3: b""}, "keys")],
)  # fmt: skip
def test_wrong_attachments_are_refused_before_anything_is_done(rb, path, given, match):
    before = rb.stats()["streams"]
    with pytest.raises((InputError, SchemaError), match=match):
        rb.checkpoint("one", attachments=given)
    assert (rb.checkpoints, leftovers(path), rb.stats()["streams"]) == ([], [], before)


def test_a_taken_name_is_refused_before_a_file_is_written(rb):
    rb.checkpoint("one")
    with pytest.raises(CheckpointError, match="already"):
        rb.checkpoint("one", attachments={"a": lambda file: pytest.fail("it was called")})


def test_a_buffer_that_knows_one_stream_alone_writes_no_file(rb, path):
    with (
        dr.ReplayBuffer.open(path, mode="a", stream="other") as other,
        pytest.raises(StateError, match="its own stream alone"),
    ):
        other.checkpoint("one", attachments={"a": lambda file: pytest.fail("it was called")})


def test_a_mixture_keeps_its_own_and_their_files(path, tmp_path):
    made(path).close()
    made(tmp_path / "b.replay").close()
    with dr.Mixture.open([path, tmp_path / "b.replay"]) as mixture:
        mixture.parts[0].checkpoint("by hand", keep=5)
        for step in range(3):
            mixture.checkpoint(f"step-{step}", attachments={"a": bytes([step])}, keep=2)
        assert mixture.checkpoints == ["step-1", "step-2"]
        assert mixture.parts[0].checkpoints == ["by hand", "step-1", "step-2"]
        assert mixture.parts[1].checkpoints == ["step-1", "step-2"]
        assert mixture.restored is None
    with dr.Mixture.open([path, tmp_path / "b.replay"], checkpoint="latest") as mixture:
        assert (mixture.restored.name, read(mixture, "a")) == ("step-2", bytes([2]))


def test_a_function_that_raises_leaves_nothing(rb, path):
    def fail(file):
        file.write(b"half" * 50_000)
        raise RuntimeError("no weights")

    with pytest.raises(RuntimeError, match="no weights"):
        rb.checkpoint("one", attachments={"a": b"whole", "b": fail})
    assert (rb.checkpoints, leftovers(path)) == ([], [])
    add(rb, 5)
    rb.checkpoint("one", attachments={"a": b"again"})
    assert read(rb, "a", "one") == b"again"


async def later(file):
    file.write(b"never awaited")


@pytest.mark.parametrize(
    ("given", "did"),
    [(lambda file: pickle.dumps(1), r"wrote 0 bytes and returned bytes"),
     (lambda file: json.dumps({"step": 1}), "wrote 0 bytes and returned str"),
     (lambda file: bytearray(b"state"), "returned bytearray"), (lambda file: memoryview(b"state"), "memoryview"),
     (lambda file: None, "wrote 0 bytes and returned NoneType"), (lambda file: {"weights": 1}, "returned dict"),
     (lambda file: file.write(b""), "wrote 0 bytes and returned int"),
     (lambda file: (yield file.write(b"never run")), "returned generator"),
     (lambda file: [file.write(b"half"), pickle.dumps(1)][1], "wrote 4 bytes and returned bytes")],
)  # fmt: skip
def test_a_function_that_does_not_write_is_told_to(rb, path, given, did):
    before = rb.stats()["streams"]
    with pytest.raises(InputError, match=rf"attachments\['b'\] must write its bytes to the file .*{did}"):
        rb.checkpoint("one", attachments={"a": b"whole", "b": given})
    assert (rb.checkpoints, leftovers(path), rb.stats()["streams"]) == ([], [], before)
    add(rb, 5)
    rb.checkpoint("one", attachments={"a": lambda file: pickle.dump(1, file), "b": lambda file: file.write(b"count")})
    assert (pickle.loads(read(rb, "a", "one")), read(rb, "b", "one")) == (1, b"count")


@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")
def test_a_coroutine_is_no_function_that_writes(rb):
    with pytest.raises(InputError, match="wrote 0 bytes and returned coroutine"):
        rb.checkpoint("one", attachments={"a": later})
    assert rb.checkpoints == []


def test_a_writer_around_the_file_has_written_once_it_is_dropped(rb):
    def write(file):
        io.TextIOWrapper(file).write("text")

    rb.checkpoint("one", attachments={"a": write})
    assert read(rb, "a", "one") == b"text"


def test_a_mixture_refuses_a_function_that_does_not_write(path, tmp_path):
    made(path).close()
    made(tmp_path / "b.replay").close()
    with dr.Mixture.open([path, tmp_path / "b.replay"]) as mixture:
        with pytest.raises(InputError, match="must write its bytes"):
            mixture.checkpoint("one", attachments={"a": lambda file: b"state"})
        assert [part.checkpoints for part in mixture.parts] == [[], []]
        mixture.checkpoint("one", attachments={"a": b""})
        assert read(mixture, "a", "one") == b""


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path):
    files = FaultyFiles()
    with made(tmp_path / "a.replay", files=files) as rb:
        add(rb, 5)
        rb.commit()
        full = {"now": False}

        def decide(operation):
            if full["now"] and operation.name == "pwrite" and "attachments" in operation.path:
                raise OSError(errno.ENOSPC, "no space", operation.path)

        files.decide = decide
        full["now"] = True
        with pytest.raises(DiskFullError, match=r"attachment.*make room and try again"):
            rb.checkpoint("one", attachments={"a": b"weights"})
        assert rb.checkpoints == []
        full["now"] = False
        rb.checkpoint("one", attachments={"a": b"weights"})
        assert read(rb, "a", "one") == b"weights"
    assert leftovers(tmp_path) == []


def test_others_add_and_sample_while_a_file_is_written(rb):
    seen = []

    def write(file):
        together(lambda: (add(rb, 5), seen.append(len(rb.sample(4)))))  # would never end under the buffer's locks
        file.write(b"weights")

    rb.checkpoint("one", attachments={"a": write})
    assert (seen, read(rb, "a", "one")) == ([4], b"weights")
    assert rows_in(rb.path, checkpoint="one") == 10  # the cut comes after the files


def test_each_file_is_written_once(rb):
    calls = []

    def write(file):
        file.write(b"weights")
        calls.append(file)

    rb.checkpoint("one", attachments={"a": write, "b": write})
    assert len(calls) == 2
    assert all(file.closed for file in calls)


def test_a_missing_attachment_is_named(rb):
    rb.checkpoint("one", attachments={"a": b"", "b": b""})
    with pytest.raises(CheckpointError, match=r"'one' has no attachment 'c'; it has 'a', 'b'"):
        rb.attachment("c", "one")
    rb.checkpoint("two")
    with pytest.raises(CheckpointError, match="it has none"):
        rb.attachment("a", "two")


def test_a_checkpoint_made_anew_is_not_the_restored_one(path):
    with made(path) as rb:
        add(rb, 5)
        rb.checkpoint("one", attachments={"a": b"old"})
    with dr.ReplayBuffer.open(path, checkpoint="one") as rb:
        rb.drop_checkpoint("one")
        rb.checkpoint("one", attachments={"a": b"new"})
        assert rb.restored.name == "one"
        with pytest.raises(CheckpointError, match="dropped"):
            rb.attachment("a")
        assert read(rb, "a", "one") == b"new"


def test_keep_drops_what_keep_made(rb):
    rb.checkpoint("by hand")
    for step in range(4):
        add(rb, 1)
        rb.checkpoint(f"step-{step}", keep=2)
    assert rb.checkpoints == ["by hand", "step-2", "step-3"]
    rb.checkpoint("last", keep=1)
    assert rb.checkpoints == ["by hand", "last"]


@pytest.mark.parametrize("several", [False, True])
def test_keep_takes_it_well_that_another_thread_dropped_the_same(rb, monkeypatch, several):
    """The new checkpoint is made: it would be wrong to say that there is none, because an older one is gone."""
    drop = checkpointing.drop

    def twice(engine, name):
        drop(engine, name)
        drop(engine, name)

    monkeypatch.setattr(checkpointing, "drop", twice)
    buffer = dr.Mixture([rb]) if several else rb
    add(rb, 1)
    for step in range(3):
        buffer.checkpoint(f"step-{step}", keep=1)
        assert buffer.checkpoints == [f"step-{step}"]
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        buffer.drop_checkpoint("step-2")


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, "2"])
def test_a_wrong_keep_is_refused(rb, keep):
    with pytest.raises(InputError, match="keep"):
        rb.checkpoint("one", keep=keep)
    assert rb.checkpoints == []


def test_keep_leaves_those_of_another_writer(path):
    with made(path, stream="a") as first, dr.ReplayBuffer.open(path, stream="b", num_envs=1) as second:
        for step in range(3):
            add(first, 1)
            first.checkpoint(f"first-{step}", keep=1)
            second.checkpoint(f"second-{step}", keep=2)
        assert first.checkpoints == ["second-1", "first-2", "second-2"]


def test_a_changed_byte_is_found_by_reading_and_by_verify(rb, path):
    rb.checkpoint("one", attachments={"a": b"weights" * 100})
    flip(path / "checkpoints" / "one" / "attachments" / "a" / "c.0.0", 20)
    with pytest.raises(CorruptionError, match="attachments"):
        read(rb, "a", "one")
    assert any("attachments" in str(problem) for problem in verify(path).problems)


def test_a_reader_reads_them(rb, path):
    rb.checkpoint("one", attachments={"a": b"weights"})
    with dr.ReplayBuffer.open(path, mode="r", checkpoint="one") as reader:
        assert (reader.restored.name, read(reader, "a")) == ("one", b"weights")


def test_the_command_line_and_inspect_list_them(rb, path):
    rb.checkpoint("one", attachments={"learner.pt": b"w" * 1_500})
    rb.checkpoint("two")
    assert [line.attachments for line in checkpoints(path)] == [{"learner.pt": 1_500}, {}]
    assert inspect(path).checkpoints[0].attachments == {"learner.pt": 1_500}
    for words in (["checkpoints", "list", path], ["inspect", path]):
        assert "learner.pt (1.5 kB)" in command(*words, env={"COLUMNS": "200"}).output


def test_a_copy_by_plain_files_has_them(rb, path, tmp_path):
    rb.checkpoint("one", attachments={"a": b"weights"})
    rb.close()
    shutil.copytree(path, tmp_path / "copy.replay")
    with dr.ReplayBuffer.open(tmp_path / "copy.replay", checkpoint="one") as copied:
        assert read(copied, "a") == b"weights"


def test_a_damaged_attachment_is_found_and_goes_with_its_checkpoint(rb, path):
    rb.checkpoint("one", attachments={"a": b"weights"})
    rb.checkpoint("two", attachments={"a": b"weights"})
    (path / "checkpoints" / "one" / "attachments" / "a" / "c.0.0").write_bytes(b"")
    found = verify(path)
    assert found.problems
    assert found.checkpoint is None  # no row is damaged: there is nothing to go back for
    rb.drop_checkpoint("one")
    assert verify(path).ok
    assert read(rb, "a", "two") == b"weights"
