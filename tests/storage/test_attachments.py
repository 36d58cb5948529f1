"""Files of a checkpoint, as arrays of bytes: what is written is read, in any order, and damage is found."""

import io
import pickle

import numpy as np
import pytest
import zarr
from helpers.damage import flip

from diskreplay.errors import CorruptionError
from diskreplay.storage import attachments, metadata
from diskreplay.storage.checkpoint_arrays import CHUNK_ROWS
from diskreplay.storage.local_files import LocalFiles

FILES = LocalFiles()
SIZES = 0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 3 * CHUNK_ROWS + 17


@pytest.fixture
def group(tmp_path):
    directory = str(tmp_path / attachments.GROUP)
    metadata.make(FILES, directory, metadata.group_document())
    return directory


def written(group, data, name="learner.pt", piece=1 << 30):
    file = attachments.AttachmentWriter(FILES, group, name)
    for at in range(0, len(data), piece):
        assert file.write(data[at : at + piece]) == len(data[at : at + piece])
    return file.finish()


def opened(tmp_path, made):
    return attachments.open_attachment(FILES, str(tmp_path), made)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_come_back_in_any_order(tmp_path, group, size):
    data = np.random.default_rng(size).bytes(size)
    made = written(group, data, piece=40_001)
    assert made == attachments.Attachment("learner.pt", size, made.crc32c)
    attachments.verify(FILES, str(tmp_path), made)
    with opened(tmp_path, made) as file, io.BytesIO(data) as twin:
        assert file.read() == data
        for place in np.random.default_rng(1).integers(0, size + 1, 20).tolist():
            assert file.seek(place) == twin.seek(place)
            assert file.read(9_000) == twin.read(9_000)
        assert file.seek(-1 if size else 0, io.SEEK_END) == max(0, size - 1)
        with pytest.raises(ValueError, match="no place"):
            file.seek(-1)


def test_a_file_of_several_shards_comes_back(tmp_path, group):
    data = np.random.default_rng(0).bytes(attachments.SHARD_BYTES + 5)
    with opened(tmp_path, written(group, data)) as file:
        assert file.read() == data
        file.seek(attachments.SHARD_BYTES - 2)
        assert file.read(4) == data[-7:-3]
    sizes = [FILES.size(f"{group}/learner.pt/c.{shard}.0") for shard in range(3)]
    assert sizes[2] is None
    assert max(sizes[:2]) < 64 << 20


def test_zarr_reads_the_bytes(tmp_path, group):
    data = b"weights" * 20_000
    written(group, data)
    array = zarr.open_group(tmp_path / attachments.GROUP, mode="r")["learner.pt"]
    assert bytes(array[: len(data), 0]) == data
    assert not array[len(data) : len(data) + 100, 0].any()


def test_numpy_and_pickle_write_to_it(tmp_path, group):
    arrays = {"kernel": np.arange(100_000.0), "bias": np.ones(3, np.float32)}
    file = attachments.AttachmentWriter(FILES, group, "weights.npz")
    np.savez(file, **arrays)
    with opened(tmp_path, file.finish()) as found, np.load(found) as loaded:
        for name, values in arrays.items():
            np.testing.assert_array_equal(loaded[name], values)
    file = attachments.AttachmentWriter(FILES, group, "state.pickle")
    pickle.dump({"step": 7}, file)
    with opened(tmp_path, file.finish()) as found:
        assert pickle.load(found) == {"step": 7}


def test_what_is_written_is_no_file_of_another_kind(group):
    file = attachments.AttachmentWriter(FILES, group, "a")
    assert (file.writable(), file.readable(), file.seekable()) == (True, False, False)
    for call in (file.tell, file.read, lambda: file.seek(0)):
        with pytest.raises(io.UnsupportedOperation):
            call()
    assert file.write(np.arange(3, dtype=np.int64)) == 24  # anything with a buffer
    assert file.finish().length == 24
    with pytest.raises(ValueError, match="written to no more"):
        file.write(b"late")


@pytest.mark.parametrize("place", [10, CHUNK_ROWS + 30, -1, -2000])
def test_a_changed_byte_is_found(tmp_path, group, place):
    made = written(group, np.random.default_rng(0).bytes(2 * CHUNK_ROWS))
    flip(tmp_path / attachments.GROUP / "learner.pt" / "c.0.0", place)
    with pytest.raises(CorruptionError, match="learner"):
        attachments.verify(FILES, str(tmp_path), made)
    with pytest.raises(CorruptionError, match="learner"):
        opened(tmp_path, made).read()


def test_verify_finds_whole_chunks_of_another_file(tmp_path, group):
    made = written(group, b"mine" * 100)
    theirs = written(group, b"your" * 100, "other")
    other = tmp_path / attachments.GROUP / "other" / "c.0.0"
    other.replace(tmp_path / attachments.GROUP / "learner.pt" / "c.0.0")
    assert made.length == theirs.length
    with pytest.raises(CorruptionError, match="not those that were written"):
        attachments.verify(FILES, str(tmp_path), made)


@pytest.mark.parametrize(
    "facts",
    [{"../x": {"length": 1, "crc32c": 0}}, {"a": {"length": -1, "crc32c": 0}}, {"a": {"length": 1}}, {"a": 3}, [1], 5,
     {"zarr.json": {"length": 1, "crc32c": 0}}, {"a": {"length": 1, "crc32c": 1 << 32}},
     {"a": {"length": 1 << 60, "crc32c": 0}}],
)  # fmt: skip
def test_forged_facts_are_refused(facts):
    with pytest.raises((KeyError, TypeError, ValueError)):
        attachments.from_json(facts)


def test_a_length_beyond_its_shards_is_refused(tmp_path, group):
    made = written(group, b"short")
    for length in (CHUNK_ROWS + 1, 1 << 47):
        with pytest.raises(CorruptionError):
            opened(tmp_path, attachments.Attachment(made.name, length, made.crc32c)).read(1 << 20)


def test_a_link_is_not_followed(tmp_path, group):
    made = written(group, b"secret")
    outside = tmp_path / "outside"
    (tmp_path / attachments.GROUP / made.name).rename(outside)
    (tmp_path / attachments.GROUP / made.name).symlink_to(outside)
    with pytest.raises(CorruptionError, match="link"):
        opened(tmp_path, made)
