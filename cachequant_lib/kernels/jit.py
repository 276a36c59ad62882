"""One way to compile: lazily, kept on disk where there is a disk to keep it on."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

PARALLEL = threading.Lock()
"""Held while a parallel kernel runs: Numba's plainest threading layer ends the process if two threads start one."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def cached_njit(**options: Any) -> Callable[[FunctionT], FunctionT]:
    """``numba.njit(cache=True)`` that still works where no cache folder can be written.

    Numba refuses to *decorate* a function when neither the source folder nor the user's cache folder is writable
    (a read-only install without a home). Then the kernel is compiled once a process instead.
    """

    def decorate(function: FunctionT) -> FunctionT:
        try:
            return cast(FunctionT, numba.njit(cache=True, **options)(function))
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            return cast(FunctionT, numba.njit(**options)(function))

    return decorate
