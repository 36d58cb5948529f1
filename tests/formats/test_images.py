"""Images: PNG and JPEG in and out, and no more imported for them than they need."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from diskreplay.errors import InputError
from diskreplay.formats.files import images


@pytest.mark.long
def test_importing_images_imports_no_other_container() -> None:
    code = (
        "import sys, diskreplay.formats.files.images; "
        "found = {'h5py', 'pyarrow', 'zarr.storage'} & sys.modules.keys(); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (5, 7, 4)])
@pytest.mark.parametrize("count", [0, 1, 16, 40])
def test_encoded_images_come_back(shape: tuple[int, ...], count: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)
    found = images.decoded(images.encoded(values), "here")
    assert len(found) == count
    for value, image in zip(values, found, strict=True):
        np.testing.assert_array_equal(image.reshape(shape), value)


def test_an_array_of_encoded_images_is_decoded_where_it_is_read() -> None:
    values = np.random.default_rng(0).integers(0, 256, (40, 5, 7, 3), np.uint8)
    encoded = images.encoded(values)
    taken: list[tuple[int, int]] = []

    def take(start: int, stop: int) -> list[bytes]:
        taken.append((start, stop))
        return encoded[start:stop]

    array = images.EncodedImages("here", take, 40)
    assert array.shape == values.shape
    np.testing.assert_array_equal(array[3:31], values[3:31])
    assert array[5:5].shape == (0, 5, 7, 3)
    assert taken == [(0, 1), (3, 31)]
    assert images.EncodedImages("here", take, 0).shape == (0,)


def test_what_is_no_image_or_of_another_size_is_refused() -> None:
    one, other = (images.encoded(np.zeros((1, *shape), np.uint8))[0] for shape in ((5, 7), (7, 5)))
    with pytest.raises(InputError, match="here: holds something that is no image: it is neither PNG nor JPEG"):
        images.decoded([one] * 20 + [b"GIF89a"], "here")
    with pytest.raises(InputError, match=r"here: has images of shape \(5, 7\) and of \(7, 5\)"):
        images.EncodedImages("here", lambda start, stop: [one, other][start:stop], 2)[0:2]
