"""Runs another library's own tests with our class in the place of theirs.

    python tests/interop/suites/suite.py sb3
    python tests/interop/suites/suite.py torchrl CHECKOUT
    python tests/interop/suites/suite.py torchrl CHECKOUT --own

``LIBRARY.toml`` says which tests of which version are run, and which of them must fail and why; ``swap_LIBRARY.py`` is
a pytest plugin that swaps the class. ``CHECKOUT`` is a git repository of the library, bare or not, which has the commit
that the list names. A library whose source distribution brings its tests needs none: ``make interop`` downloads that
one. With ``--own`` nothing is swapped: what fails then fails with the library's own class, too. Further options go to
pytest.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping

HERE = pathlib.Path(__file__).parent
ARCHIVES = HERE.parents[2] / "build" / "suites"


class NoTestsError(Exception):
    """The tests of a library are not here; the message says how to bring them."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Tests that are treated alike, and why, in a line.

    A pattern is a test's id without its parameters, for all of them, or with; ``*`` stands for any text.
    """

    reason: str
    tests: tuple[str, ...]

    def names(self, test: str) -> bool:
        return any(matches(pattern, test) for pattern in self.tests)


@dataclasses.dataclass(frozen=True)
class Difference(Part):
    """Tests that must fail.

    ``shows`` is a regular expression that their failures contain, ``count`` how many they are, and ``own`` says that
    they fail with the library's own class, too.
    """

    shows: str
    count: int
    own: bool = False


@dataclasses.dataclass(frozen=True)
class Suite:
    """What of a library's tests is run, and what comes of it.

    Attributes:
        library: its name for people.
        package, version: what must be installed.
        source: a source distribution, or a commit.
        folder: what of a commit the tests are.
        files: of tests, or directories of such.
        passed: how many pass.
        naming: a regular expression; only tests whose text or parameters contain it are run.
        cases: at most so many cases of each test are run, always the same ones; 0 for all.
        makes: directories that the tests expect.
        needs: distributions that the tests import, and `make interop` does not install.
        plugins: of pytest, loaded with the library's own class, too.
        edits: what is replaced in the files of the tests, and by what: a device, a number of steps.
        left_out: tests of ``files`` that are not run.
        differs: tests that must fail.
    """

    library: str
    package: str
    version: str
    source: str
    folder: str
    files: tuple[str, ...]
    passed: int
    left_out: tuple[Part, ...]
    differs: tuple[Difference, ...]
    naming: str = ""
    cases: int = 0
    makes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    edits: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: pathlib.Path) -> Suite:
        facts = tomllib.loads(path.read_text())
        left_out, differs = facts.pop("left_out", []), facts.pop("differs", [])
        for part in (*left_out, *differs):
            part["tests"] = tuple(part["tests"])
        return cls(
            **{name: tuple(fact) if isinstance(fact, list) else fact for name, fact in facts.items()},
            left_out=tuple(Part(**part) for part in left_out),
            differs=tuple(Difference(**part) for part in differs),
        )

    @property
    def tests(self) -> int:
        """How many tests are run, without those that skip themselves."""
        return self.passed + sum(part.count for part in self.differs)


def matches(pattern: str, test: str) -> bool:
    """Tell whether a pattern of a list names a test, by its id."""
    if "[" not in pattern:
        test = test.split("[")[0]
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), test) is not None


def names() -> list[str]:
    """The libraries that have a list here."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def listed(name: str) -> Suite:
    return Suite.read(HERE / f"{name}.toml")


def bring(suite: Suite, checkout: str | None, into: pathlib.Path) -> None:
    """Copies the tests, and what of the library they need beside them, into a directory.

    Raises NoTestsError where they are not here.
    """
    if suite.source.endswith(".tar.gz"):
        archive = ARCHIVES / suite.source
        if not archive.exists():
            raise NoTestsError(f"{archive} is missing; `make interop` downloads it")
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
        return
    if checkout is None:
        raise NoTestsError(f"no checkout of {suite.library} was given; its commit {suite.source} has the tests")
    git = ["git", "-C", checkout, "archive", suite.source, suite.folder]
    done = subprocess.run(git, capture_output=True)
    if done.returncode:
        raise NoTestsError(f"{checkout} does not give commit {suite.source} of {suite.library}: {done.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(into, filter="data")


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def run(name: str, checkout: str | None = None, own: bool = False, more: tuple[str, ...] = ()) -> int:
    """Runs the tests of a library. Returns 0 where they came out as its list says. ``more`` goes to pytest."""
    suite = listed(name)
    installed = importlib.metadata.version(suite.package)
    if installed != suite.version:
        raise NoTestsError(f"the list is of {suite.package} {suite.version}, and {installed} is installed")
    if missing := [needed for needed in suite.needs if not is_installed(needed)]:
        raise NoTestsError(f"the tests of {suite.library} need {' '.join(missing)}, which are to be installed by hand")
    with tempfile.TemporaryDirectory(prefix=f"{name}-tests-") as folder:
        bring(suite, checkout, pathlib.Path(folder))
        root = pathlib.Path(folder, suite.source.removesuffix(".tar.gz")) if suite.source.endswith(".gz") else folder
        for made in suite.makes:
            pathlib.Path(root, made).mkdir()
        for file in suite.files if suite.edits else ():
            text = pathlib.Path(root, file).read_text()
            for old, new in suite.edits.items():
                text = text.replace(old, new)
            pathlib.Path(root, file).write_text(text)
        loaded = (*suite.plugins, "differences", *(() if own else (f"swap_{name}",)))
        plugins = [option for plugin in loaded for option in ("-p", plugin)]
        options = [f"--suite={HERE / name}.toml", *(["--own"] if own else []), *more]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, *options, *suite.files]
        # One thread: the networks of these tests are so small that threads only wait for each other.
        environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=root, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=names())
    parser.add_argument("checkout", nargs="?", help="a git repository of the library")
    parser.add_argument("--own", action="store_true", help="with the library's own class")
    given, more = parser.parse_known_args()
    try:
        return run(given.library, given.checkout, given.own, tuple(more))
    except NoTestsError as error:
        print(error, file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
