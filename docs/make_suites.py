"""Writes what came of other libraries' own tests into their pages: ``python docs/make_suites.py``.

The facts are the lists in ``tests/interop/suites``. A test compares the two, so that neither changes alone.
"""

from __future__ import annotations

import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).parent
SUITES = DOCS.parent / "tests" / "interop" / "suites"
PAGES = {"minari": "formats.md"}
"""Where a library's page is no ``compat/NAME.md``."""
BEGIN, END = "<!-- begin own tests -->", "<!-- end own tests -->"

sys.path.append(str(SUITES))
from suite import Suite, listed, names  # noqa: E402


def section(suite: Suite) -> str:
    """What a library's page says."""
    sampled = f", at most {suite.cases} cases of each test" if suite.cases else ""
    named = f" that name `{suite.naming}`" if suite.naming else ""
    lines = [
        f"{suite.passed} of {suite.tests} of {suite.library}'s own tests pass with ours in the place of its own:",
        f"those of version {suite.version}{named}{sampled}, in {', '.join(f'`{file}`' for file in suite.files)}.",
    ]
    if suite.edits:
        edits = [f"`{old}` reads `{new}`" for old, new in suite.edits.items()]
        lines += ["In these files " + ", ".join(edits) + "."]
    if suite.differs:
        lines += ["These differ because:", "", "| tests | why |", "|---|---|"]
        lines += [
            f"| {part.count} | {part.reason}{' (with its own class, too)' * part.own} |" for part in suite.differs
        ]
    if suite.left_out:
        lines += ["", "Not run:", ""]
        lines += [f"- {', '.join(f'`{test}`' for test in part.tests)}: {part.reason}." for part in suite.left_out]
    return "\n".join(lines)


def pages() -> dict[pathlib.Path, str]:
    """Each page as it must be."""
    found = {}
    table = DOCS / "compat.md"
    text = table.read_text()
    for name in names():
        suite = listed(name)
        page = DOCS / PAGES.get(name, f"compat/{name}.md")
        head, rest = page.read_text().split(BEGIN)
        found[page] = f"{head}{BEGIN}\n\n{section(suite)}\n\n{END}{rest.split(END)[1]}"
        text = re.sub(
            rf"^(\| `compat\.{name}` \|.*\|)[^|]*\|$", rf"\g<1> {suite.passed} of {suite.tests} |", text, flags=re.M
        )
    return {**found, table: text}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
