"""Runs tests with the core built by AddressSanitizer and UndefinedBehaviorSanitizer: a process that does wrong ends.

    .venv/bin/python tests/sanitized.py tests/index tests/reading

The package lies beside that module in build/sanitized, as links. Sanitizers are those of the system's compiler; where
there is none, a line says so.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "build" / "sanitized"
REPORT = FOLDER / "report"
"""What a sanitizer says goes into files that begin so: pytest keeps what else the process prints."""
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
LIBRARIES = "libasan.so", "libstdc++.so"
"""What the process must have from its start; the second, as other modules throw exceptions of C++."""

sys.path.insert(0, str(ROOT))
import hatch_build  # noqa: E402


def libraries() -> list[str] | None:
    """The paths of `LIBRARIES`, or None if this compiler has none."""
    if (compiler := hatch_build.compiler()) is None:
        return None
    asked = [[*compiler, f"-print-file-name={name}"] for name in LIBRARIES]
    found = [subprocess.run(command, capture_output=True, text=True).stdout.strip() for command in asked]
    return found if all(pathlib.Path(path).is_absolute() for path in found) else None


def build() -> None:
    """Put the module and links to the rest of the package into `FOLDER`."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "diskreplay", FOLDER / "diskreplay", copy_function=os.symlink, ignore=ignored)
    os.environ["CFLAGS"] = FLAGS
    hatch_build.build(ROOT, FOLDER / hatch_build.MODULE)


def main() -> int:
    if (preloaded := libraries()) is None:
        print("tests/sanitized.py: there is no C compiler with sanitizers, so no test was run; apt install gcc")
        return 0
    build()
    path = FOLDER, ROOT / "cli", ROOT / "tests"
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONMALLOC": "malloc",
        "PYTHONSAFEPATH": "1",  # else the package of the working directory would come before the one with the module
        "LD_PRELOAD": " ".join(preloaded), "ASAN_OPTIONS": f"detect_leaks=0:log_path={REPORT}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={REPORT}",
    }  # fmt: skip
    where = [sys.executable, "-c", "from diskreplay.native import core; print(core.__file__)"]
    loaded = subprocess.run(where, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    assert loaded == str(FOLDER / hatch_build.MODULE), f"the module is {loaded}"
    ended = subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:]], env=environment, cwd=ROOT).returncode
    reports = sorted(REPORT.parent.glob(f"{REPORT.name}.*"))
    for report in reports:
        print(report.read_text())
    return ended or len(reports)


if __name__ == "__main__":
    sys.exit(main())
