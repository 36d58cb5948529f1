"""Tables and comma-separated values are printed as their rows come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
import pytest
from diskreplay_cli import output

ROWS = 3 * output.MEASURED_ROWS


@pytest.mark.parametrize("show", [output.print_table, output.print_csv])
def test_the_first_lines_do_not_wait_for_the_last_rows(
    show: Callable[[tuple[str, ...], Iterable[tuple[str, ...]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of 100,000 episodes took a minute and 600 MB before its first line was there."""
    taken, printed = 0, []

    def rows() -> Iterator[tuple[str, ...]]:
        nonlocal taken
        for number in range(ROWS):
            taken = number + 1
            yield str(number), "a"

    def echo(message: str = "", **options: Any) -> None:
        printed.append((taken, message))

    monkeypatch.setattr(click, "echo", echo)
    monkeypatch.setattr(click, "secho", echo)
    show(("number", "letter"), rows())
    assert all(at <= (number + 1) * output.MEASURED_ROWS for number, (at, _) in enumerate(printed))
    assert len("\n".join(message.rstrip("\n") for _, message in printed).splitlines()) == ROWS + 1


def test_columns_are_as_wide_as_their_first_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("1", "\N{SNOWMAN}\N{FULLWIDTH LATIN CAPITAL LETTER A}", "x"), ("22222222", "b", "")]
    output.print_table(("number", "what", "more"), rows)
    assert capsys.readouterr().out.splitlines() == [
        "number    what  more",
        "1         \N{SNOWMAN}\N{FULLWIDTH LATIN CAPITAL LETTER A}   x",
        "22222222  b",
    ]
