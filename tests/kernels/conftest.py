"""What the tests of the packed kernels share: every instruction set of this CPU, and arrays with guards around them."""

import numpy as np
import pytest

from cachequant_lib.kernels.isa import usable_instruction_sets

GUARD = 64
SENTINEL = 0x5A


@pytest.fixture(params=usable_instruction_sets(), ids=lambda isa: isa.name)
def isa(request):
    """Each instruction set that this process may use."""
    return request.param


@pytest.fixture
def guarded():
    """Make arrays inside larger buffers; afterwards, nothing around any of them may have changed."""
    buffers = []

    def make(shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        buffer = np.full(size + 2 * GUARD, SENTINEL, np.uint8)
        buffers.append(buffer)
        return buffer[GUARD : GUARD + size].view(dtype).reshape(shape)

    yield make
    for buffer in buffers:
        assert (buffer[:GUARD] == SENTINEL).all(), "written before the array"
        assert (buffer[-GUARD:] == SENTINEL).all(), "written past the array"
