"""Writes the table of docs/formats.md from the facts that each format states: ``python docs/make_formats.py``.

A test compares the two, so that neither changes alone.
"""

from __future__ import annotations

import pathlib

from diskreplay import formats
from diskreplay.formats.core.table import markdown

PAGE = pathlib.Path(__file__).with_name("formats.md")
BEGIN, END = "<!-- begin table -->", "<!-- end table -->"


def page() -> str:
    """The page with the table as it must be."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{markdown(formats.every())}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page())
