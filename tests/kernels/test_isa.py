"""The table of instruction sets: each row emits its instruction, and none is used that Numba does not compile for."""

import re
import subprocess
import sys

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

import cachequant_lib as cq
from cachequant_lib.kernels import isa as isa_module
from cachequant_lib.kernels.isa import INSTRUCTION_SETS, best_instruction_set, usable_instruction_sets

# A CPU that has each instruction set and no better one. LLVM compiles for all of them wherever it runs.
EXAMPLES = {
    "avx512vnni": ("x86_64-unknown-linux-gnu", "cascadelake"),
    "avxvnni": ("x86_64-unknown-linux-gnu", "alderlake"),
    "avx2": ("x86_64-unknown-linux-gnu", "haswell"),
    "neon": ("aarch64-unknown-linux-gnu", "neoverse-n1"),
    "generic": ("x86_64-unknown-linux-gnu", "x86-64"),
}


def assembly_of_dot4(isa):
    """Compile one dot4 for the example CPU."""
    vector = ir.VectorType(ir.IntType(32), isa.lanes)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [vector.as_pointer()] * 3), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    total, a, b = (builder.load(pointer) for pointer in function.args)
    builder.store(isa.dot4(builder, total, a, b), function.args[0])
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu = EXAMPLES[isa.name]
    module.triple = triple
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    return machine.emit_assembly(llvm.parse_assembly(str(module)))


@pytest.mark.parametrize("isa", INSTRUCTION_SETS, ids=lambda isa: isa.name)
def test_each_row_becomes_its_instruction(isa):
    assembly = assembly_of_dot4(isa)
    assert re.search(rf"\b{isa.instruction}\b", assembly), assembly
    assert "call" not in assembly
    assert "maddubs" not in assembly  # it saturates: pairs of products do not fit in its 16 bits


def test_one_instruction_where_the_cpu_has_one():
    counts = {isa.name: len(re.findall(isa.instruction, assembly_of_dot4(isa))) for isa in INSTRUCTION_SETS}
    assert counts == {"avx512vnni": 1, "avxvnni": 1, "avx2": 2, "neon": 1, "generic": 4}


def test_generic_is_always_usable_and_the_best_is_chosen():
    usable = usable_instruction_sets()
    assert usable[-1].name == "generic"
    assert [isa for isa in INSTRUCTION_SETS if isa in usable] == list(usable)  # in the order of the table


@pytest.fixture
def choose(monkeypatch):
    """Choose afresh, with another environment variable or other CPU features."""

    def choose(name=None, features=None):
        best_instruction_set.cache_clear()
        if name is not None:
            monkeypatch.setenv(isa_module.VARIABLE, name)
        if features is not None:
            monkeypatch.setattr(isa_module, "target_features", lambda: frozenset(features))
        return best_instruction_set().name

    yield choose
    monkeypatch.undo()
    best_instruction_set.cache_clear()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx2", "avx512bw", "avx512vnni", "avxvnni"}, "avx512vnni"),
        ({"avx2", "avxvnni"}, "avxvnni"),
        ({"avx2", "avx512bw"}, "avx2"),
        ({"avx2"}, "avx2"),
        ({"dotprod", "neon"}, "neon"),
        ({"sse4.2", "avx"}, "generic"),
        (set(), "generic"),
    ],
)
def test_best_of_what_the_cpu_has(choose, features, expected):
    assert choose("", features) == expected


def test_the_environment_variable_names_another(choose):
    assert choose("generic") == "generic"
    assert choose("avx2", {"avx2", "avxvnni"}) == "avx2"


@pytest.mark.parametrize("name", ["neon", "avx512", "AVX2"])
def test_what_cannot_be_used_is_refused_with_what_can(choose, name):
    with pytest.raises(cq.CacheQuantError, match=f"CACHEQUANT_ISA='{name}' cannot be used here; .* avx2, generic"):
        choose(name, {"avx2"})


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"NUMBA_CPU_NAME": "generic"}, "generic"),
        ({"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+avx,-avx2"}, "generic"),
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+avx2"}, "avx2"),
    ],
)
def test_never_an_instruction_that_numba_does_not_compile_for(settings, expected, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    code = "from cachequant_lib.kernels.isa import best_instruction_set\nprint(best_instruction_set().name)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == expected
