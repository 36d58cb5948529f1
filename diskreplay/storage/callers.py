"""The search for the line of the user's program that called into this package, for messages."""

from __future__ import annotations

import sys

OURS = ("diskreplay", "diskreplay_cli")


def caller() -> str:
    """Return the file and line of the newest call from outside of this package: ``train.py, line 12``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        frame = frame.f_back
    return f"{_cell(frame.f_code.co_filename) or frame.f_code.co_filename}, line {frame.f_lineno}"


def _cell(file: str) -> str | None:
    """Return the name of a notebook's cell as IPython's tracebacks give it, ``Cell In[3]``, or None for other files."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)(file)
    return " ".join(named) if named else None
