"""Compiled functions. Importing this module imports numba: only modules that are themselves loaded late import it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from diskreplay.interrupts import undisturbed

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F, **options: Any) -> F:
    """``function`` compiled on its first call and kept on disk for the next process; ``options`` are numba's.

    Where nothing can be kept (a read-only installation in an account without a home), each process compiles anew.
    A kernel may call kernels of its own module only: what is kept is renewed when its own file changes.

    Signals wait while it compiles, some seconds at most, and so does the garbage collector: numba, interrupted there,
    keeps kernels that are half made, and asked for another one, ends the process.
    """
    options = {"error_model": "numpy", **options}
    try:
        compiled: F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder to keep it in
        compiled = numba.njit(**options)(function)
    dispatcher: Any = compiled
    dispatcher.compile = _whole(dispatcher.compile)
    return compiled


def _whole(function: F) -> F:
    """``function``, into which no other code comes on its thread."""

    @functools.wraps(function)
    def held(*args: Any, **options: Any) -> Any:
        with undisturbed():
            return function(*args, **options)

    return cast(F, held)
