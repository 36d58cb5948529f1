"""The rules that all formats share which pyarrow reads."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core import untrusted
from diskreplay.formats.core.flat import utf8
from diskreplay.formats.files import images
from diskreplay.schema.ragged import Lists

NULL_LISTS = "Expected all lists to be of size"
"""The beginning of the error by which pyarrow before 26 says that it reads no nulls among lists of a fixed size."""


@contextlib.contextmanager
def damage(path: pathlib.Path) -> Iterator[None]:
    """Raise InputError for what pyarrow raises for a damaged file, or one that only newer versions read."""
    import pyarrow

    with untrusted.damage(repr(str(path)), (pyarrow.ArrowException, OSError, ValueError, TypeError)):
        try:
            yield
        except pyarrow.ArrowInvalid as error:
            if NULL_LISTS not in str(error):
                raise
            raise InputError(
                f"{str(path)!r}: pyarrow {pyarrow.__version__} reads no missing values among lists of a fixed size, as "
                "earlier versions of diskreplay wrote them: pip install 'pyarrow>=26', or export the store again"
            ) from error


def is_text(kind: Any) -> bool:
    """Tell whether values of an Arrow type are texts."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_number(kind: Any) -> bool:
    """Tell whether values of an Arrow type are numbers or booleans."""
    import pyarrow as pa

    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def picture_array(values: NDArray[Any]) -> Any:
    """Return pictures as an Arrow array of PNG, as Hugging Face's ``Image`` has them."""
    import pyarrow as pa

    encoded = pa.array(images.encoded(values), pa.binary())
    return pa.StructArray.from_arrays([encoded, pa.nulls(len(values), pa.string())], ["bytes", "path"])


def text_array(name: str, rows: Lists) -> Any:
    """Return rows of code points as an Arrow array of texts; raise InputError for others."""
    import pyarrow as pa

    return pa.array([text.decode() for text in utf8(name, rows)], pa.string())


def number_array(values: NDArray[Any], sized: bool) -> Any:
    """Return values ``(n, *shape)`` as an Arrow array; lists of arrays are of a fixed size if ``sized``."""
    import pyarrow as pa

    found = pa.array(np.ascontiguousarray(values).reshape(-1))
    for length in reversed(values.shape[1:]):
        if sized:
            found = pa.FixedSizeListArray.from_arrays(found, length)
        else:
            found = pa.ListArray.from_arrays(np.arange(0, len(found) + 1, length, dtype=np.int32), found)
    return found
