"""What formats state about themselves, and the page that is made of it."""

from __future__ import annotations

import pathlib
import runpy

import pytest

from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.core.format import Format, check_installed
from diskreplay.formats.core.table import NAMES, lacks

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_table_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "make_formats.py"))["page"]
    assert (DOCS / "formats.md").read_text() == page(), "run: python docs/make_formats.py"


@pytest.mark.parametrize("name", formats.MODULES)
def test_facts(name: str) -> None:
    format = formats.get(name)
    assert format.name == name
    assert format.title
    assert format.read is not None or format.write is not None
    assert format.compressions
    assert bool(format.requires) == bool(format.extra)
    assert all(hasattr(format.holds, field) for field in NAMES)
    assert f"**{name}**" in (DOCS / "formats.md").read_text(), "say something of it in docs/formats.md"


def test_what_is_lacking() -> None:
    assert lacks(formats.get("diffusion-policy"))[0] == "final observations"


def test_a_library_that_is_not_installed() -> None:
    format = formats.get("npz")
    missing = Format("odd", "x", "file", format.holds, format.recognise, requires=("no_such_library",), extra="odd")
    with pytest.raises(
        ModuleNotFoundError, match=r"odd datasets need no_such_library: pip install 'diskreplay\[odd\]'"
    ):
        check_installed(missing)


def test_guessing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="no dataset at"):
        formats.guess(tmp_path / "none")
    with pytest.raises(InputError, match="no format known"):
        formats.guess(tmp_path)
