"""Chapter 6's drawings and its stored loops: sound and small; the stepper does the whole product."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import assembly
from cachequant_lib.checkup import MULTIPLY, inner_loop
from cachequant_lib.drawings import ch06
from cachequant_lib.kernels.isa import INSTRUCTION_SETS, usable_instruction_sets
from cachequant_lib.results import load_result

CASES: dict[str, Any] = load_result("assembly")["data"]["cases"]
LIMITS = {"peak": 4.67e11, "fp32, NumPy": 8e10, "fp32, PyTorch": 5e10}
STEPS = (1, 2, 3, 4, 8, 16, 32)
LOOPS = [(case, rung) for case in ("native", "avx2") for rung in ch06.RUNGS]


def loop_of(case: str, rung: int) -> list[str]:
    return list(CASES[case]["rungs"][f"rung_{rung}"]["loop"])


@pytest.mark.parametrize("rung", ch06.RUNGS)
def test_the_stepper_is_sound(rung: int, drawn_well: Callable[[str, int], None]) -> None:
    for step in STEPS:
        drawn_well(ch06.memory(rung, step), 9_000)


@pytest.mark.parametrize("rung", ch06.RUNGS)
def test_the_steps_of_a_rung_are_the_whole_product(rung: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.integers(-127, 128, (4, 32)), rng.integers(-127, 128, (8, 32))
    stored = {0: weight.T, 4: weight.reshape(2, 4, 8, 4).transpose(0, 2, 1, 3)}
    bytes_of_weight = np.ravel(stored.get(min(rung, 4) if rung in (0, 4, 5) else 1, weight))
    total = np.zeros(32, int)
    for step in range(1024 // ch06.PRODUCTS[rung]):
        now = ch06.touched(rung, step)
        inputs, weights = x.ravel()[list(now.inputs)], bytes_of_weight[list(now.weights)]
        if rung < 4:
            total[list(now.results)] += inputs @ weights
        else:  # each row's four bytes meet each column's four
            total[list(now.results)] += (inputs.reshape(2, 4) @ weights.reshape(4, 4).T).ravel()
    assert np.array_equal(total.reshape(4, 8), x @ weight.T)


def test_what_is_asked_for_ahead_is_read_later() -> None:
    asked: set[int] = set()
    for step in range(32):
        now = ch06.touched(5, step)
        assert not asked & set(now.weights) or step >= 4
        asked |= set(now.ahead)
    assert asked == set(range(64, 256))


@pytest.mark.parametrize(("case", "rung"), LOOPS)
def test_listings_are_sound_and_mark_every_multiplication_shown(
    case: str, rung: int, drawn_well: Callable[[str, int], None]
) -> None:
    drawn = ch06.listing(
        loop_of(case, rung), f"Rung {rung} (avx512vnni)", ["81 instructions, 48 multiply, 3,072 products:"]
    )
    drawn_well(drawn, 9_000)
    shown = re.findall(r"monospace' font-size='12'(?: font-weight='600')?>([^<]*)<", drawn)
    assert len(shown) <= 20
    assert drawn.count("#ffe9d6") == sum(bool(MULTIPLY.match(line)) for line in shown) > 0
    if len(loop_of(case, rung)) > 20:
        gone = next(int(found[1]) for line in shown if (found := re.search(r"(\d+) more", line)))
        assert gone + len(shown) - 1 == len(loop_of(case, rung))


def test_products_of_an_instruction() -> None:
    known = {
        "vpdpbusd %zmm1, %zmm2, %zmm3": 64,
        "vpdpbusd (%rax), %ymm2, %ymm3": 32,
        "vpmaddwd %ymm5, %ymm9, %ymm5": 16,
        "vpmaddwd %xmm5, %xmm9, %xmm5": 8,
        "vpmuldq %zmm4, %zmm8, %zmm4": 8,
        "imulq %rcx, %rsi": 1,
        "vpaddd %zmm0, %zmm4, %zmm0": 0,
        "mulps %xmm0, %xmm1": 0,
    }
    assert {line: ch06.products(line) for line in known} == known


@pytest.mark.parametrize("rows", [1, 512])
def test_the_climb_is_sound(rows: int, drawn_well: Callable[[str, int], None]) -> None:
    rates = {f"rung {n}: {words}": 10 ** (8.5 + n / 1.6) for n, words in ch06.RUNGS.items()}
    drawn_well(ch06.climb(rates, LIMITS, f"{rows} rows: 768 → 3,072"), 6_000)


def test_a_rung_that_was_not_measured_says_so() -> None:
    drawn = ch06.climb({"rung 0": float("nan"), "rung 1": 1e10}, LIMITS, "1 row")
    assert drawn.count("not measured") == 1


@pytest.mark.parametrize("case", CASES)
def test_the_stored_counts_are_those_of_the_stored_loops(case: str) -> None:
    for found in CASES[case]["rungs"].values():
        counted = Counter(match[0] for line in found["loop"] if (match := MULTIPLY.match(line)))
        assert found["multiplies"] == dict(counted)
        assert found["instructions"] == len(found["loop"])
    json.dumps(CASES[case])


def test_the_chapter_may_say_what_it_says_about_the_loops() -> None:
    names = [next(iter(CASES["native"]["rungs"][f"rung_{rung}"]["multiplies"])) for rung in ch06.RUNGS]
    assert names == ["imulq", "vpmuldq", "vpmaddwd", "vpdpbusd", "vpdpbusd", "vpdpbusd"]
    wide = [sum(map(ch06.products, loop_of("native", rung))) / len(loop_of("native", rung)) for rung in ch06.RUNGS]
    assert wide[0] < wide[1] < wide[2] < wide[3] < wide[4]
    assert sum(line.startswith("prefetch") for line in loop_of("native", 5)) > 0
    assert not any(line.startswith("prefetch") for line in loop_of("native", 4))


@pytest.mark.compiled
@pytest.mark.parametrize("rung", [3, 4, 5])
def test_this_processors_kernels_hold_the_instruction_of_the_table(rung: int) -> None:
    isa = usable_instruction_sets()[0]
    kernel, *arguments = assembly.operands(isa)[f"rung_{rung}"]
    loop = inner_loop(kernel, *arguments)
    wanted = {"avx2": "vpmaddwd|vpdpwssd", "generic": MULTIPLY.pattern}.get(isa.name, isa.instruction)
    tile = arguments[0]
    assert sum(bool(re.match(rf"({wanted})\b", line)) for line in loop) >= tile.rows * tile.vectors
    if CASES["native"]["name"] == isa.name:
        assert set(CASES["native"]["rungs"][f"rung_{rung}"]["multiplies"]) == {isa.instruction}
    assert isa in INSTRUCTION_SETS
