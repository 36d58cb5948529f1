"""What is printed of values."""

import json

from diskreplay_cli import text


def test_letters_that_move_a_terminal_are_escaped() -> None:
    value = {"\x9b31m\u202e": ["\ud800", "ü", "\x07"]}
    shown = text.as_json(value)
    assert shown.isprintable()
    assert "ü" in shown
    assert json.loads(shown) == value


def test_the_rows_that_streams_end_at() -> None:
    assert text.ends({"0": 1234567, "actor-1": 0}) == "0: 1,234,567, actor-1: 0"
    assert text.ends({}) == ""
