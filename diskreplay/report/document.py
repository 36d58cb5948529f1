"""The page as one document: markup, style, script and data in one text, which asks the network for nothing.

1. The parts are files of this package, in ``page/``; the scripts are joined in the order of ``SCRIPTS``.
2. A content security policy names style and script by their hashes, so that nothing else can run: names and JSON from a
   store are data, never markup.
3. Data stand in a block of JSON in which no character can end it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import importlib.resources
import json
from typing import Any

STYLE = "page.css"
SCRIPTS = ("elements.js", "charts.js", "table.js", "player.js", "whole.js", "page.js")
ESCAPED = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
NOWHERE = "base-uri 'none'; form-action 'none'"


def to_text(data: Any) -> str:
    """Return JSON that may stand in a page; raise ValueError for infinities and NaN, which JSON lacks."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(ESCAPED)


def document(title: str, data: str, *, live: bool = False) -> str:
    """Return the whole page.

    Args:
        title: the title of the window.
        data: as in :func:`to_text`.
        live: True if it asks the server that it came from for what it shows.
    """
    parts = {
        "title": html.escape(title.encode(errors="replace").decode()),
        "policy": html.escape(policy(live=live)),
        "style": _file(STYLE),
        "data": data,
        "script": _script(),
    }
    page = _file("page.html")
    pieces = page.split("@@")  # text, name, text, name, ...: what is put in is not looked at again
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def policy(*, live: bool) -> str:
    asks = "connect-src 'self'; " if live else ""
    code = f"script-src {_hash(_script())}; style-src {_hash(_file(STYLE))}"
    return f"default-src 'none'; {code}; img-src data:; {asks}{NOWHERE}"


@functools.cache
def _file(name: str) -> str:
    return importlib.resources.files("diskreplay.report").joinpath("page", name).read_text(encoding="utf-8")


@functools.cache
def _script() -> str:
    parts = "\n".join(_file(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
