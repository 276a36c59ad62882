"""Chapter 6: what the processor runs in the innermost loop of each rung of the ladder. No clock.

Every rung is compiled for this processor, for one without AVX-512 and for one with next to nothing (on x86), and the
loop that holds most multiplications is taken out of the compiler's text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.kernels import AVX2
from benchmarks.workers import crew

TITLE = "the innermost loop of every rung, as the processor sees it"
GENERIC = {"CACHEQUANT_ISA": "generic", "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse,+sse2"}

Say = Callable[[str], None]


class Compiler:
    """Compiles the rungs for the instruction set that its process was told to use."""

    def rungs(self) -> dict[str, Any]:
        """The instruction set, its tile, and the loop of each rung."""
        import numba

        from cachequant_lib.checkup import MULTIPLY, inner_loop
        from cachequant_lib.kernels.isa import best_instruction_set

        isa, loops = best_instruction_set(), {}
        for name, (kernel, *arguments) in operands(isa).items():
            loop = inner_loop(kernel, *arguments)
            found = Counter(match[0] for line in loop if (match := MULTIPLY.match(line)))
            loops[name] = {"instructions": len(loop), "multiplies": dict(found), "loop": loop}
        cpu = numba.config.CPU_NAME or None  # type: ignore[attr-defined]
        return {"name": isa.name, "instruction": isa.instruction, "cpu": cpu, "tile": isa.int8_tile, "rungs": loops}


def operands(isa: Any) -> dict[str, tuple[Any, ...]]:
    """Each rung: the kernel, then arguments of the right types."""
    from cachequant_lib.kernels import int8, ladder
    from cachequant_lib.kernels.tiles import Tile

    one, tile = Tile(isa, 1, 1), Tile(isa, *isa.int8_tile)
    weight, numbers = np.zeros((tile.width, 64), np.int8), np.ones(tile.width, np.float32)
    packed = int8.pack_int8(tile, weight, numbers, numbers)
    codes, steps, out = np.zeros((1, 64), np.int8), np.ones(1, np.float32), np.zeros((1, tile.width), np.float32)
    plain = codes, steps, weight, numbers, numbers, out
    return {
        "rung_0": (ladder.multiply_int8_0_naive, *plain),
        "rung_1": (ladder.multiply_int8_1_rows, *plain),
        "rung_2": (ladder.multiply_int8_2_int32, *plain),
        "rung_3": (ladder.multiply_int8_3_dot4, one, *plain[:3], packed.starts, *plain[3:]),
        "rung_4": (ladder.multiply_int8_4_tiles, tile, codes, steps, packed, out),
        "rung_5": (int8.panel_int8, tile, codes, steps, packed, 0, out, 0, False),
    }


def run(model_name: str, threads: Sequence[int], repeats: int, say: Say) -> dict[str, Any]:
    """Compile; the options for a model, threads and repeats change nothing here."""
    from cachequant_lib.machine import machine_info

    cases: dict[str, dict[str, str]] = {"native": {}}
    if machine_info()["architecture"] == "x86_64":
        cases |= {"avx2": AVX2, "generic": GENERIC}
    data = {}
    for name, variables in cases.items():
        with crew({"compiler": (Compiler, ())}, 1, variables) as workers:
            data[name] = workers["compiler"].call("rungs")
        counts = (f"{rung} {found['multiplies']}" for rung, found in data[name]["rungs"].items())
        say(f"{name} ({data[name]['name']}): " + ", ".join(counts))
    return {"model": {"name": "none", "fingerprint": None}, "settings": {"model": None}, "data": {"cases": data}}


def table(record: dict[str, Any]) -> str:
    """One row a case and rung."""
    lines = [f"{'compiled for':14s}{'rung':8s}{'instructions':>14s}  multiplications"]
    for case in record["data"]["cases"].values():
        for rung, found in case["rungs"].items():
            words = ", ".join(f"{count} {name}" for name, count in found["multiplies"].items())
            lines.append(f"{case['name']:14s}{rung:8s}{found['instructions']:14d}  {words}")
    return "\n".join(lines)


def charts(record: dict[str, Any]) -> dict[str, str]:
    """None: the chapter shows the loops themselves."""
    return {}
