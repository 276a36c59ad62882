"""No kernel reads or writes past the end of an array: each one ends where a forbidden page begins.

Vector words check no index. Here each operand lies against a page that the operating system lets nobody touch, in a
process of its own: a single byte too far ends it with a signal.
"""

import signal
import subprocess
import sys

import pytest

from cachequant_lib.kernels.isa import usable_instruction_sets

pytestmark = [pytest.mark.compiled, pytest.mark.slow]

GUARD = """
import ctypes, mmap, sys
import numpy as np
libc, kept = ctypes.CDLL(None, use_errno=True), []

def against_the_wall(array):
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    wall = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + pages * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(wall), mmap.PAGESIZE, 0) == 0
    kept.append(memory)
    copy = np.frombuffer(memory, array.dtype, array.size, pages * mmap.PAGESIZE - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy
"""

KERNELS = """
from cachequant_lib.formats import quantize_bfp8, quantize_int8
from cachequant_lib.kernels import bfp8, head, int8, quantize
from cachequant_lib.kernels.isa import usable_instruction_sets
from cachequant_lib.kernels.tiles import Tile
isa = {isa.name: isa for isa in usable_instruction_sets()}[sys.argv[1]]
rng = np.random.default_rng(0)
for m, n, k in ((1, 1, 1), (1, 48, 32), (9, 49, 33), (7, 50, 96), (3, 5, 31)):
    x, weight = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    bias, tile, b = np.zeros(n, np.float32), Tile(isa, *isa.int8_tile), quantize_int8(weight)
    packed = int8.PackedInt8(*map(against_the_wall, int8.pack_int8(tile, b.codes, b.scales, bias)))
    codes, steps = against_the_wall(np.zeros((m, -(-k // 4) * 4), np.int8)), against_the_wall(np.zeros(m, np.float32))
    out = against_the_wall(np.zeros((m, n), np.float32))
    quantize.quantize_rows_int8(tile, against_the_wall(x), codes, steps)
    int8.multiply_int8(tile, codes, steps, packed, out)
    packed = head.PackedHead(*map(against_the_wall, head.pack_head(tile.single, b.codes, b.scales, weight)))
    bounds, row = against_the_wall(np.zeros((2, len(packed.units)), np.float32)), against_the_wall(x[0])
    assert head.bound_logits(tile.single, row, packed, bounds)
    digits, factors = (against_the_wall(part) for part in (np.zeros((2, codes.shape[1]), np.int8), steps[:1].repeat(3)))
    head.bound_columns(tile.single, digits, factors, packed, bounds)
    rows, scores = against_the_wall(np.arange(n)), against_the_wall(np.zeros((2, n)))
    head.score_rows(against_the_wall(weight), row, rows, scores[0], scores[1])
    if k % 32:
        continue
    tile, b = Tile(isa, *isa.bfp8_tile), quantize_bfp8(weight)
    packed = bfp8.PackedBFP8(*map(against_the_wall, bfp8.pack_bfp8(tile, b.mantissas, b.exponents, bias)))
    codes, powers = against_the_wall(np.zeros((m, k), np.int8)), against_the_wall(np.zeros((m, k // 32), np.float32))
    starts = against_the_wall(np.zeros((m, k // 32), np.int32))
    quantize.quantize_rows_bfp8(tile, against_the_wall(x), codes, powers, starts)
    bfp8.multiply_bfp8(tile, codes, powers, starts, packed, out)
print("alive")
"""

# A whole pass, every array of it against the wall: weights, cache and all room for what lies between.
WHOLE = """
import numba
import cachequant_lib as cq
from cachequant_lib.kernels import forward
from cachequant_lib.kernels.isa import usable_instruction_sets
from cachequant_lib.model import gpt2, linear, llama, whole
from cachequant_lib.model.base import ModelConfig
isa = {isa.name: isa for isa in usable_instruction_sets()}[sys.argv[1]]
linear.best_instruction_set = lambda: isa
run = forward.forward_alone

def walled(part):
    if isinstance(part, np.ndarray):
        return against_the_wall(part)
    return type(part)(*map(walled, part)) if isinstance(part, tuple) else part

def run_walled(tile, *work):
    copies = [walled(part) for part in work]
    run(tile, *copies)
    for part, copy in zip(work[6], copies[6]):  # the room: results are read from it
        part[...] = copy

def build(module, **sizes):
    config = ModelConfig(
        vocab_size=97, context_length=40, num_layers=2, norm_eps=1e-5, tied_head=True, bos_token_id=0, eos_token_id=0,
        architecture=module.__name__.rpartition(".")[2], **sizes,
    )
    shapes, rng = module.tensor_shapes(config), np.random.default_rng(0)
    return module.build(config, None, "random", lambda key: rng.standard_normal(shapes[key]).astype(np.float32) * 0.2)

def odd(num_heads, num_kv_heads, head_dim, width, hidden_width, rope_theta=None):
    return locals()

numba.set_num_threads(1)
for module, scheme, sizes in (
    (gpt2, "int8", odd(5, 5, 12, 60, 77)),
    (llama, "int8", odd(6, 3, 10, 54, 75, 10000.0)),
    (llama, "bfp8", odd(6, 2, 16, 96, 160, 10000.0)),
):
    model, ids = cq.quantize_model(build(module, **sizes), scheme), np.arange(39)
    kv, other = model.new_kv(capacity=39), model.new_kv(capacity=39)
    whole.forward_alone = run_walled
    walled_in = np.concatenate([model.hidden_states(part, kv) for part in (ids[:21], ids[21:22], ids[22:])])
    whole.forward_alone = run
    assert (walled_in == model.hidden_states(ids, other)).all()
    assert (kv.keys == other.keys).all() and kv.length == 39
print("alive")
"""

# One register too many: proof that the wall stands.
TOO_FAR = """
from numba import njit
from cachequant_lib.kernels import simd
from cachequant_lib.kernels.isa import INSTRUCTION_SETS
from cachequant_lib.kernels.tiles import Tile

@njit
def read(tile, array, start, out):
    simd.store(out, 0, 0, simd.load(tile, array, start))

tile = Tile(INSTRUCTION_SETS[-1], 1, 1)
array, out = against_the_wall(np.zeros(tile.width, np.int32)), np.zeros(tile.width, np.int32)
read(tile, array, 0, out)
print("so far", flush=True)
read(tile, array, 1, out)
"""


@pytest.mark.parametrize("isa", usable_instruction_sets(), ids=lambda isa: isa.name)
def test_no_kernel_goes_past_the_end(isa):
    run = subprocess.run([sys.executable, "-c", GUARD + KERNELS, isa.name], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "alive\n"), run.stderr


@pytest.mark.parametrize("isa", usable_instruction_sets(), ids=lambda isa: isa.name)
def test_no_whole_pass_goes_past_the_end(isa):
    run = subprocess.run([sys.executable, "-c", GUARD + WHOLE, isa.name], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "alive\n"), run.stderr


def test_the_wall_stands():
    run = subprocess.run([sys.executable, "-c", GUARD + TOO_FAR], capture_output=True, text=True, check=False)
    assert run.stdout == "so far\n"
    assert run.returncode in (-signal.SIGSEGV, -signal.SIGBUS)
