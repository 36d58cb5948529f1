"""The site: the pages that the repository shows, and an API reference from the docstrings; `make docs` builds it.

Its pages are where they are, so that their links lead to the same pages here and there. Sphinx, because docstrings are
written for it; its search needs no server.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
from typing import Any

project = "diskreplay"
copyright = "the diskreplay authors"
version = release = importlib.metadata.version("diskreplay")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "README"
include_patterns = [
    "README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md",
    "benchmarks/RESULTS.md", "datasets/README.md", "examples/README.md", "tests/README.md",
]  # fmt: skip
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "inherited-members": True, "member-order": "bysource"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_mock_imports = ["jax", "torch"]
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # an attribute that two classes have

html_theme = "furo"
html_title = f"diskreplay {version}"
html_copy_source = False

CONTENTS = """

```{toctree}
:hidden:
:caption: Tutorial

docs/tutorial
```

```{toctree}
:hidden:
:caption: How do I ...?

docs/guide
docs/compat
docs/report
docs/recording
docs/robots
docs/torch
docs/slurm
docs/remote
docs/ray
docs/rollouts
docs/samplers
examples/README
CONTRIBUTING
```

```{toctree}
:hidden:
:caption: Reference
:glob:

docs/api
docs/cli
docs/formats
docs/compat/*
docs/format
docs/glossary
benchmarks/RESULTS
CHANGELOG
```

```{toctree}
:hidden:
:caption: Explanation
:glob:

docs/durability
docs/architecture
docs/design/*
docs/scale
docs/pitfalls
```

```{toctree}
:hidden:
:caption: Project

docs/README
CODE_OF_CONDUCT
SECURITY
tests/README
datasets/README
```
"""
NAMES = re.compile(r"^( {4}[\w*]+(?:, [\w*]+)*,)\n +(?=[\w*]+[,:])", re.MULTILINE)
"""A list of arguments that goes on in the next line, which napoleon does not know."""


def add_contents(app: Any, page: str, source: list[str]) -> None:
    """The contents, at the end of the front page."""
    if page == root_doc:
        source[0] += CONTENTS


def join_names(app: Any, kind: str, name: str, what: object, options: object, lines: list[str]) -> None:
    """Names of arguments in one line, their stars as letters."""
    text, count = "\n".join(lines), 1
    while count:
        text, count = NAMES.subn(r"\1 ", text)
    lines[:] = re.sub(r"(?<=, )\*\*(?=\w+:)", r"\\*\\*", text).split("\n")


def lead_to_front(app: Any, error: Exception | None) -> None:
    """A page that is opened first leads to the front page."""
    if app.builder.format == "html" and error is None:
        page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={root_doc}.html">'
        pathlib.Path(app.outdir, "index.html").write_text(page, "utf-8")


def setup(app: Any) -> None:
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", join_names, priority=100)  # before napoleon
    app.connect("build-finished", lead_to_front)
