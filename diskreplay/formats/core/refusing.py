"""What a refusal says of a dataset: what is in it, what it lacks, and the line of Python that takes it all the same."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator, Sequence

from diskreplay.errors import InputError
from diskreplay.formats.core.container import Container, is_attribute

FOUND = 300
"""The most characters of the names that an error lists."""
HINTS = {
    "obs": ("obs", "state", "image", "img", "frame", "qpos"), "action": ("act",), "reward": ("rew",),
    "terminated": ("done", "term", "end"),
}  # fmt: skip
"""The parts of names by which the arrays of an example line are chosen."""

ODD = ("object", "unreadable")
"""The dtypes of what cannot be steps."""
Shapes = Sequence[tuple[str, tuple[int, ...], str]]
"""The name, shape and dtype of arrays."""


def shapes_in(container: Container, names: Iterable[str]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield the arrays of these names with their shapes and dtypes; those that cannot be opened without them."""
    for name in sorted(names):
        if not is_attribute(name):
            try:
                array = container.array(name)
                found = name, tuple(array.shape), str(array.dtype)
            except InputError:
                found = name, (), "unreadable"
            yield found


def listed(shapes: Shapes) -> str:
    """Return names with shapes and dtypes for an error, not too many."""
    text = ", ".join(f"{name} {shape} {dtype}" if shape else f"{name} {dtype}" for name, shape, dtype in shapes)
    return text if len(text) <= FOUND else f"{text[:FOUND]}..."


def by_hand(path: pathlib.Path, loads: str, item: str, shapes: Shapes) -> str:
    """Return the line of Python that imports arrays of a file, with those that look like steps in their places.

    Args:
        path: the file.
        loads, item: how Python opens one, and takes an array from it; see :class:`Kind`.
        shapes: what is in it.
    """
    lengths = [shape[0] for _, shape, _ in shapes if shape]
    count = max(set(lengths), key=lengths.count, default=0)
    left = {name: shape for name, shape, dtype in shapes if shape[:1] == (count,) and dtype not in ODD}
    chosen: dict[str, str] = {}
    for ours, hints in HINTS.items():
        single = ours in ("reward", "terminated")
        named = [name for name, shape in left.items() if not single or shape in ((count,), (count, 1))]
        for name in [name for name in named if any(hint in name.lower() for hint in hints)][:1]:
            chosen[ours] = name
            del left[name]
    missing = [ours for ours in ("obs", "action") if ours not in chosen]
    chosen |= dict(zip(missing, left, strict=False))
    if not {"obs", "action"} <= chosen.keys():
        return "formats.from_arrays wants observations and actions, with an entry for each step"
    given = [f"{ours}={item.format(name)}" for ours, name in chosen.items()]
    if "terminated" not in chosen:
        given.append(f"lengths=[{count}]")
    modules = loads.partition("(")[0].rpartition(".")[0] + (", numpy" if item.startswith("numpy.") else "")
    return f"from Python: import {modules}; {call(given, loads.format(str(path)))}"


def call(given: Sequence[str], opened: str) -> str:
    """Return the line that opens a file, and imports arrays from it."""
    return (
        f"from diskreplay import formats; from diskreplay.ops.convert import import_dataset; f = {opened}; "
        f"import_dataset(formats.from_arrays({', '.join(given)}), 'new.replay')"
    )
