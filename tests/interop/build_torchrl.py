"""Builds torchrl's C++ extension, which holds its priorities, where the one of its wheel does not load.

A wheel's extension loads with the torch that it was built against alone: that of torchrl 0.14.1 with 2.14, of which the
package registry has no build without CUDA. The wheel carries the sources; a C++ compiler and Python's headers make the
extension for the torch that is installed, in about a minute. Where these are missing this program says so, and the
tests that need priorities are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import sysconfig

LOAD = [sys.executable, "-c", "import torch, torchrl._torchrl"]


def loads() -> bool:
    return subprocess.run(LOAD, capture_output=True).returncode == 0


def build() -> None:
    """Puts the extension in the place of the wheel's. Raises OSError or CalledProcessError where it cannot."""
    from torch.utils import cpp_extension

    spec = importlib.util.find_spec("torchrl")
    assert spec is not None, "torchrl is installed"
    package = pathlib.Path(str(spec.origin)).parent
    sources = package / "csrc"
    extension = package / f"_torchrl{sysconfig.get_config_var('EXT_SUFFIX')}"
    built = extension.with_suffix(".built")
    headers = [str(sources), *cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = [f"-L{folder}" for folder in cpp_extension.library_paths()]
    subprocess.run(
        [
            os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-DTORCH_EXTENSION_NAME=_torchrl",
            "-DTORCH_API_INCLUDE_EXTENSION_H", *(f"-I{folder}" for folder in headers),
            str(sources / "pybind.cpp"), str(sources / "utils.cpp"), "-o", str(built),
            *libraries, "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10",
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    built.replace(extension)


def main() -> None:
    if loads():
        return
    print("Building torchrl's C++ extension for the torch that is installed")
    try:
        build()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"It was not built, and its tests are skipped: {error}\n{getattr(error, 'stderr', '')}")
    else:
        print("It loads now" if loads() else "It was built, and does not load either; its tests are skipped")


if __name__ == "__main__":
    main()
