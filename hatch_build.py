"""The hook that compiles diskreplay/native/core: Cython's C, then the system's compiler, or Zig's, which pip brings."""

import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "diskreplay/native/core.abi3.so"
DIRECTIVES = {"boundscheck": False, "wraparound": False, "initializedcheck": False, "cdivision": True, "binding": False}
"""What Cython is told for code whose places are checked where they come in."""
REQUIRED = ["cython>=3.1", "numpy>=2"]
"""What compiles the module; numpy 2 has headers for all versions from 1.19 on."""
FLAGS = ["-std=c11", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
LIMITED = [
    "-DPy_LIMITED_API=0x030B0000",
    "-DCYTHON_LIMITED_API=1",
    "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION",
]
"""For one module that all versions of Python from 3.11 on load."""


def compiler() -> list[str] | None:
    """Return the command of a C compiler of the system, or None if there is none."""
    for command in (os.environ.get("CC", ""), sysconfig.get_config_var("CC") or "", "cc", "gcc", "clang"):
        if command and shutil.which(shlex.split(command)[0]):
            return shlex.split(command)[:1]
    return None


def checksum(native: pathlib.Path) -> str:
    """Return a checksum of the module's sources and of the kind of machine, as diskreplay.native has it."""
    found = hashlib.sha256(f"{sys.platform} {os.uname().machine}".encode())
    for source in sorted(native.glob("*.[chp]*")):
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def build(root: pathlib.Path, target: pathlib.Path) -> None:
    """Compile the module to a file."""
    import numpy
    from Cython.Compiler.Main import compile as cython

    native, include = root / "native", sysconfig.get_paths()["include"]
    if not pathlib.Path(include, "Python.h").exists():
        raise SystemExit(f"diskreplay has a part in C, and {include}/Python.h is not there: apt install python3-dev")
    # Without -mcpu Zig would compile for the machine's own processor alone.
    command = compiler() or [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
    flags = [*FLAGS, *LIMITED, *shlex.split(os.environ.get("CFLAGS", "-O2")), f'-DSOURCES="{checksum(native)}"']
    where = [f"-I{native}", "-isystem", include, "-isystem", numpy.get_include()]
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".native-") as folder:
        made = pathlib.Path(folder, "core.c")
        options = {"language_level": 3, "compiler_directives": DIRECTIVES}
        cython(str(native / "core.pyx"), output_file=str(made), **options)
        objects = []
        for source in [*sorted(native.glob("*.c")), made]:
            objects.append(pathlib.Path(folder, f"{source.parent.name}-{source.stem}.o"))
            warn = ["-w"] if source == made else []  # Cython's own code is not ours to mend
            subprocess.run([*command, *flags, *warn, *where, "-c", source, "-o", objects[-1]], check=True)
        link = ["-shared", *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-lm"])]
        module = pathlib.Path(folder, target.name)
        subprocess.run([*command, *flags, *objects, *link, "-o", module], check=True)
        module.replace(target)  # a process that has the old one keeps it


class NativeHook(BuildHookInterface[Any]):
    """Builds the module before hatchling packs the wheel, and before it installs an editable one.

    A clone compiles once for all its environments: a module of the same sources that is there already is taken.
    """

    def _is_there(self) -> bool:
        target = pathlib.Path(self.root, MODULE)
        return target.exists() and checksum(pathlib.Path(self.root, "native")).encode() in target.read_bytes()

    def dependencies(self) -> list[str]:
        """Return what the hook needs beyond the package's build requirements."""
        if self._is_there():
            return []
        return REQUIRED if compiler() else [*REQUIRED, "ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the module into the package, and name the wheel by what it needs."""
        root = pathlib.Path(self.root)
        if not self._is_there():
            build(root, root / MODULE)
        build_data["pure_python"] = False
        build_data["artifacts"].append(MODULE)
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    build(here, here / MODULE)
