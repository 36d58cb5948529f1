"""What is printed of values."""

import json

from diskreplay_cli import text


def test_letters_that_move_a_terminal_are_escaped() -> None:
    value = {"\x9b31m\u202e": ["\ud800", "ü", "\x07"]}
    shown = text.as_json(value)
    assert shown.isprintable()
    assert "ü" in shown
    assert json.loads(shown) == value
