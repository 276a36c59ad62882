"""Bit planes: nothing lost, and a partial read is the number with its tail replaced, bit for bit."""

import numpy as np
import pytest

import cachequant_lib as cq
from cachequant_lib.formats.bitplanes import quantize_bitplanes, split_planes

PATTERNS = np.arange(2**16).astype(np.uint16)


def test_every_pattern_comes_back():
    planes = split_planes(PATTERNS.reshape(16, -1))
    assert (planes.patterns() == PATTERNS.reshape(16, -1)).all()
    assert planes.nbytes == 2 * PATTERNS.size


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("fill", ["000", "100", "111"])
def test_a_partial_read_is_a_mask_and_a_fill(bits, fill):
    lost = 16 - bits
    tail = {"000": 0, "100": 1 << (lost - 1) if lost else 0, "111": (1 << lost) - 1}[fill]
    assert (split_planes(PATTERNS).patterns(bits, fill) == (PATTERNS >> lost << lost | tail)).all()


def test_planes_hold_what_they_say():
    planes = split_planes(np.array([0xABCD, 0x1234], np.uint16))
    assert planes.high.tolist() == [0xAB, 0x12]
    assert planes.middle.tolist() == [0xC | 0x3 << 4]
    assert planes.low.tolist() == [0xD | 0x4 << 4]


@pytest.mark.parametrize("bits", [8, 12])
def test_the_middle_is_off_by_at_most_half_of_what_was_lost_and_hardly_biased(bits):
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    planes = quantize_bitplanes(x)
    whole, read = planes.dequantize(), planes.dequantize(bits)
    step = np.exp2(np.maximum(np.frexp(whole)[1] - 1, -14) - (bits - 6))  # of the last bit that was read
    assert (np.abs(read - whole) <= step / 2).all()
    relative = (read - whole)[whole != 0] / np.abs(whole[whole != 0])
    bias = abs((relative * np.sign(whole[whole != 0])).mean())
    assert bias < 0.2 * np.abs(relative).mean()  # not 0: within a step small numbers are likelier than large ones
    cut = (planes.dequantize(bits, "000") - whole)[whole != 0] * np.sign(whole[whole != 0])
    assert cut.max() <= 0  # without a fill every read is too small


def test_dequantize_is_fp16():
    x = np.array([[0.0, -0.0, 65504.0, -65504.0], [2.0**-24, -(2.0**-14), 1 / 3, -1.0]], np.float32)
    back = quantize_bitplanes(x).dequantize()
    assert (back == x.astype(np.float16)).all()
    assert (np.signbit(back) == np.signbit(x)).all()
    assert quantize_bitplanes(x).bits_per_value == 16


@pytest.mark.parametrize("x", [[65505.0, 1], [np.nan, 1], [np.inf, 1], [1.0], [1.0, 2.0, 3.0]])
def test_what_has_no_planes_is_refused(x):
    with pytest.raises(cq.FormatError):
        quantize_bitplanes(x)


@pytest.mark.parametrize(("bits", "fill"), [(10, "100"), (0, "100"), (8, "010")])
def test_other_widths_and_fills_are_refused(bits, fill):
    with pytest.raises(cq.FormatError, match="8, 12 or 16"):
        split_planes(PATTERNS).patterns(bits, fill)


def test_other_patterns_are_refused():
    with pytest.raises(cq.FormatError, match="uint16"):
        split_planes(np.zeros(4, np.int32))
