"""Compiled kernels kept on disk: found again, never stale, and the same bits whatever CPU they were compiled for."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cachequant_lib as cq
from cachequant_lib.kernels.isa import usable_instruction_sets

pytestmark = [pytest.mark.compiled, pytest.mark.slow]

LIBRARY = Path(cq.__file__).parent

# One product, 3 * 5 + 0.5, on the smallest tile.
MULTIPLY = """
import json
import numpy as np
from cachequant_lib.kernels.int8 import multiply_int8, pack_int8
from cachequant_lib.kernels.isa import INSTRUCTION_SETS
from cachequant_lib.kernels.tiles import Tile
tile, ones, out = Tile(INSTRUCTION_SETS[-1], 1, 1), np.ones(1, np.float32), np.empty((1, 1), np.float32)
weight = pack_int8(tile, np.full((1, 4), 5, np.int8), ones, ones / 2)
multiply_int8(tile, np.array([[3, 0, 0, 0]], np.int8), ones, weight, out)
print(json.dumps([float(out[0, 0]), sum(multiply_int8.stats.cache_hits.values())]))
"""

LAYERS = """
import hashlib
import numpy as np
import cachequant_lib as cq
rng = np.random.default_rng(0)
x, weight = rng.standard_normal((5, 96)).astype(np.float32), rng.standard_normal((50, 96)).astype(np.float32)
bias = rng.standard_normal(50).astype(np.float32)
for layer in (cq.Int8Linear, cq.BFP8Linear):
    print(hashlib.sha256(layer(weight, bias)(x).tobytes()).hexdigest())
from cachequant_lib.kernels import fp32
from cachequant_lib.kernels.isa import best_instruction_set
out = np.empty((5, 50), np.float32)
fp32.multiply_fp32(*fp32.tiles_fp32(best_instruction_set()), x, weight, bias, out, 2)
print(hashlib.sha256(out.tobytes()).hexdigest())
from cachequant_lib.kernels.head import bound_logits
from cachequant_lib.model.heads import CertifiedHead
head = CertifiedHead(weight)
bounds = np.empty((2, len(head._packed.units)), np.float32)
assert bound_logits(head._tile, x[0], head._packed, bounds)
print(hashlib.sha256(bounds[:, :50].tobytes()).hexdigest(), head.largest(x[:1], 1).argmax())
"""


# The two kernels of a layer, called one by one and so stored one by one.
PARTS = """
import numpy as np
from cachequant_lib.kernels.int8 import multiply_int8, pack_int8
from cachequant_lib.kernels.isa import best_instruction_set
from cachequant_lib.kernels.quantize import quantize_rows_int8
from cachequant_lib.kernels.tiles import Tile
isa = best_instruction_set()
tile = Tile(isa, *isa.int8_tile)
ones, codes = np.ones(2, np.float32), np.empty((2, 32), np.int8)
quantize_rows_int8(tile, np.ones((2, 32), np.float32), codes, ones)
weight = pack_int8(tile, np.ones((2, 32), np.int8), ones, ones)
multiply_int8(tile, codes, ones, weight, np.empty((2, 2), np.float32))
"""

LAYER = """
import numpy as np
import cachequant_lib as cq
print(cq.Int8Linear(np.ones((2, 32), np.float32))(np.ones((2, 32), np.float32))[0, 0])
"""


def run(code, folder, **settings):
    """Run Python code in a fresh process that imports the library from `folder`; return what it printed."""
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | settings
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_changed_line_in_another_file_is_never_answered_from_the_cache(tmp_path):
    copy, cache = tmp_path / "copy", str(tmp_path / "cache")
    shutil.copytree(LIBRARY, copy / "cachequant_lib", ignore=shutil.ignore_patterns("data", "__pycache__"))
    words = copy / "cachequant_lib" / "kernels" / "simd.py"
    original = words.read_text("utf-8")

    def multiply():
        return json.loads(run(MULTIPLY, copy, NUMBA_CACHE_DIR=cache))

    assert multiply() == [15.5, 0]  # compiled
    assert multiply() == [15.5, 1]  # found
    changed = original.replace(
        "lambda builder, kind, x, y: builder.fmul(x, y)", "lambda builder, kind, x, y: builder.fadd(x, y)"
    )
    assert changed != original
    words.write_text(changed, "utf-8")
    assert multiply() == [15 + 1 + 1 + 0.5, 0]  # 15 + scale + step + bias: the new meaning, compiled
    words.write_text(original, "utf-8")
    assert multiply() == [15.5, 1]  # the old source, and its kernel is still there


def test_a_stored_kernel_finds_the_parallel_ones_it_calls(tmp_path):
    # the caller is compiled while both callees come from disk, and then comes from disk itself
    for code in (PARTS, LAYER, LAYER):
        printed = run(code, LIBRARY.parent, NUMBA_CACHE_DIR=str(tmp_path))
    assert printed == "32.0\n"


def test_every_cpu_gives_the_same_bits(tmp_path):
    settings = [{"CACHEQUANT_ISA": isa.name} for isa in usable_instruction_sets()] + [{"NUMBA_CPU_NAME": "generic"}]
    outputs = [run(LAYERS, LIBRARY.parent, **setting) for setting in settings]
    assert len(outputs) >= 2
    assert len(set(outputs)) == 1, dict(zip(map(str, settings), outputs, strict=True))


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    nowhere = tmp_path / "file"
    nowhere.write_text("in the way of a folder")
    home = {"HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere), "NUMBA_CACHE_DIR": ""}
    copy = tmp_path / "copy"
    shutil.copytree(LIBRARY, copy / "cachequant_lib", ignore=shutil.ignore_patterns("data", "__pycache__"))
    (copy / "cachequant_lib" / "kernels" / "__pycache__").write_text("in the way of a folder")
    assert json.loads(run(MULTIPLY, copy, **home)) == [15.5, 0]
