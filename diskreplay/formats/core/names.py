"""The names in a dataset, which of them were read, and the order of those that are numbered.

A name is that of an array, a table's column, an attribute (``data/demo_0.attrs/seed``) or a file of a folder. A reader
adds all names that are there, and takes those that it reads. What is left was not read: no format lists it by hand.
"""

from __future__ import annotations

import pathlib
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable

NUMBER = re.compile("([0-9]+)")


class Names:
    """The names in a dataset.

    >>> names = Names(["data/demo_0/obs", "data/demo_0/states", "data/demo_1/states", "mask"])
    >>> names.shown = lambda name: name.replace("demo_0", "demo_*").replace("demo_1", "demo_*")
    >>> names.take("data/demo_0/obs")
    >>> names.unread()
    ('data/demo_*/states (2)', 'mask')

    Attributes:
        shown: returns how a name is shown; of numbered episodes with ``*`` in place of the number.
    """

    def __init__(self, names: Iterable[str] = (), shown: Callable[[str], str] = str) -> None:
        self._there = dict.fromkeys(names)
        self._read: set[str] = set()
        self.shown = shown

    def add(self, *names: str) -> None:
        """Add names that are there."""
        self._there.update(dict.fromkeys(names))

    def take(self, *names: str) -> None:
        """Note that these are read, whether they were added before or are added later."""
        self._read.update(names)

    def unread(self) -> tuple[str, ...]:
        """Return what is left, in order; names with ``*`` once, with their count."""
        counts = Counter(self.shown(name) for name in self._there if name not in self._read)
        return tuple(f"{name} ({count:,})" if "*" in name else name for name, count in sorted(counts.items()))


def free(name: str, taken: Container[str]) -> str:
    """Return a name with as many dots behind it that it is none of those taken."""
    while name in taken:
        name += "."
    return name


def files_below(folder: pathlib.Path) -> list[str]:
    """Return the names of all files in a folder and in those below it, such as ``data/notes.txt``."""
    return [entry.relative_to(folder).as_posix() for entry in folder.rglob("*") if not entry.is_dir()]


def numbered(name: str) -> str:
    """Return the name of a file with ``*`` in place of numbers of three and more digits, as files are numbered."""
    return re.sub(r"\d{3,}", "*", name)


def natural(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return a key by which names sort in the order of all numbers in them, whatever digits these have.

    >>> sorted(["ep_10_1", "ep_2_10", "ep_2_9", "ep_002_8"], key=natural)
    ['ep_002_8', 'ep_2_9', 'ep_2_10', 'ep_10_1']
    """
    parts = NUMBER.split(name)  # texts and numbers in turn
    # A number is compared by its length, then its digits: Python makes no integer of thousands of digits.
    numbered = ((len(part.lstrip("0")), part.lstrip("0")) if at % 2 else (0, part) for at, part in enumerate(parts))
    return tuple(numbered), name
