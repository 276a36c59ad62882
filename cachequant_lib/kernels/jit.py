"""One way to compile: lazily, kept on disk where there is a disk to keep it on."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

PARALLEL = threading.Lock()
"""Held while a parallel kernel runs: Numba's plainest threading layer ends the process if two threads start one."""


def start_threads() -> None:
    """Start Numba's threads, which also tells the compiler where its parallel runtime lies.

    A kernel from disk that calls a parallel kernel may not do so itself: compiled when the other one came from disk,
    too, it is stored without the note that it needs them, and would jump to address 0. Cheap after the first time.
    """
    numba.get_num_threads()  # type: ignore[no-untyped-call]


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
