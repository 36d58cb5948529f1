"""Functions that numba compiles. Importing numba takes long, so only modules that are loaded late import this one."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import binding, ir
from numba import extending
from numba.core import config

from diskreplay import loading
from diskreplay.interrupts import undisturbed, uninterrupted

F = TypeVar("F", bound=Callable[..., Any])

intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic
types: Any = numba.types


def kernel(function: F, **options: Any) -> F:
    """Return ``function`` in a form that numba compiles at the first call; ``options`` are numba's.

    numba keeps the compiled code on disk for the next process. If it finds no folder to write to, as in a read-only
    installation without a home directory, each process compiles anew. A kernel may call only kernels of its own module,
    because numba renews kept code only when the file of the kernel itself changes.

    The name of kept code contains a checksum of the processor's name and features. Without it, only numba's index file
    would say for which processor the code was compiled. Two machines that share a folder could spoil this file, and one
    would run the other's code.

    While numba compiles, for some seconds at most, the garbage collector waits. If it compiles in the main thread,
    signals wait, too. If numba were interrupted, it would keep half-made kernels, and its next compilation would end
    the process.
    """
    options = {"error_model": "numpy", **options}
    function.__qualname__ += f"-{_processor()}"
    try:
        compiled: F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder to write to
        loading.unkept()
        compiled = numba.njit(**options)(function)
    dispatcher: Any = compiled
    dispatcher.compile = uninterrupted(dispatcher.compile, undisturbed)
    return compiled


def _processor() -> str:
    """Return a checksum of the name and the features of the processor for which numba compiles."""
    name, features = config.CPU_NAME, config.CPU_FEATURES
    with contextlib.suppress(RuntimeError):  # LLVM does not know this processor's features
        name, features = name or binding.get_host_cpu_name(), features or binding.get_host_cpu_features().flatten()
    return f"{zlib.crc32(f'{name} {features}'.encode()):08x}"


@intrinsic
def copy(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy ``count`` bytes from one address to another by ``memcpy``.

    If the count is a small constant, the compiler turns the copy into a few instructions, without a call.

    The compiled code of its callers, which is kept on disk, contains this code. If you change this function, rename it,
    so that the callers change, too, and are compiled anew.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, size = ir.IntType(8).as_pointer(), ir.IntType(64)
        target, source = (builder.inttoptr(value, byte) for value in values[:2])
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, size])
        builder.call(memcpy, [target, source, values[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Tell the processor that memory will be read; the address may be any number.

    As with :data:`copy`, if you change it, rename it.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        )
        line = builder.inttoptr(values[0], byte)
        builder.call(function, [line, number(0), number(3), number(1)])  # for a read, kept in all caches, as data
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _read(result: Any, bits: int) -> Any:
    """Return a function for use in compiled code: it reads ``bits`` bits at an address, and returns an int64."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        found = builder.load(builder.inttoptr(values[0], ir.IntType(bits).as_pointer()), align=bits // 8)
        return found if bits == 64 else builder.zext(found, ir.IntType(64))

    @intrinsic
    def read(typing_context: Any, address: Any) -> Any:
        return result(types.int64), generate

    return read


int64_at = _read(types.int64, 64)
byte_at = _read(types.int64, 8)
"""Reads the byte at an address. As with :data:`copy`: if you change this function, rename it."""


INT, LONG = ir.IntType(32), ir.IntType(64)


def foreign(result: ir.IntType, *parameters: ir.IntType) -> Any:
    """Return a compiled ``call(address, arguments)`` of a C function.

    Arguments and result are passed as int64s, also where the C function has pointers or 32-bit integers.

    Addresses are not constants in the code, because the code is kept on disk and addresses change with each process.
    As with :data:`copy`: if you change this function, rename it.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address, given = values
        pointer = builder.inttoptr(address, ir.FunctionType(result, parameters).as_pointer())
        arguments = [builder.extract_value(given, position) for position in range(len(parameters))]
        narrow = [
            builder.trunc(value, kind) if kind is INT else value
            for value, kind in zip(arguments, parameters, strict=True)
        ]
        answer = builder.call(pointer, narrow)
        return builder.sext(answer, LONG) if result is INT else answer

    @intrinsic
    def call(typing_context: Any, address: Any, arguments: Any) -> Any:
        given = types.UniTuple(types.int64, len(parameters))
        return types.int64(types.int64, given), generate

    return call
