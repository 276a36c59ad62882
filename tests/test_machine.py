"""Facts about the machine: present, plain, and without anybody's name in them."""

import getpass
import json
import re
import socket
import subprocess
import sys

import pytest

from cachequant_lib import machine
from cachequant_lib.machine import machine_info, machine_slug


def test_a_result_file_can_hold_the_facts() -> None:
    info = json.loads(json.dumps(machine_info()))
    assert info["cores"] >= 1
    assert info["cpu"]
    assert re.fullmatch(r"3\.\d+\.\d+\S*", info["python"])
    assert {"numpy", "numba", "torch", "transformers"} <= set(info["versions"])
    assert info["blas"]["name"] != "unknown"
    assert info["threading_layer"] in ("tbb", "omp", "workqueue")


def test_the_facts_name_nobody() -> None:
    text = json.dumps(machine_info())
    for name in (socket.gethostname(), getpass.getuser()):
        assert not re.search(rf"\b{re.escape(name)}\b", text)


def test_asking_does_not_import_pytorch() -> None:
    code = (
        "import sys; from cachequant_lib.machine import machine_info; machine_info(); "
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize(
    ("cpu", "core", "cores", "slug"),
    [
        ("AMD EPYC", "znver5", 2, "amd-epyc-znver5-2core"),
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "skylake", 12, "intel-core-i7-8700k-skylake-12core"),
        ("Apple M2 Pro", "apple-m2", 10, "apple-m2-pro-apple-m2-10core"),
    ],
)
def test_the_folder_is_named_after_the_kind_of_machine(cpu: str, core: str, cores: int, slug: str) -> None:
    assert machine_slug({"cpu": cpu, "cpu_core": core, "cores": cores}) == slug


def test_instruction_sets_come_from_the_processor_not_from_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: {"avx2": True, "avx512vnni": False})
    assert machine_info()["instruction_sets"] == ["AVX2"]

    def cannot_tell() -> dict[str, bool]:
        raise RuntimeError("not on this architecture")

    monkeypatch.setattr(binding, "get_host_cpu_features", cannot_tell)
    assert machine_info()["instruction_sets"] == []


def test_two_thread_pools_in_one_process_are_a_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())
    monkeypatch.setitem(sys.modules, "numba", object())
    monkeypatch.delenv("OMP_MAX_ACTIVE_LEVELS", raising=False)
    assert any("OMP_MAX_ACTIVE_LEVELS" in line for line in machine.timing_traps())
    monkeypatch.setenv("OMP_MAX_ACTIVE_LEVELS", "1")
    assert not any("OMP_MAX_ACTIVE_LEVELS" in line for line in machine.timing_traps())


def test_a_forced_matrix_kernel_is_a_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
    assert any("OPENBLAS_CORETYPE=Nehalem" in line for line in machine.timing_traps())
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    assert not any("OPENBLAS" in line for line in machine.timing_traps())


def test_a_busy_machine_is_a_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_load_average", lambda: 1000.0)
    assert any("busy" in line for line in machine.timing_traps())
    monkeypatch.setattr(machine, "_load_average", lambda: 0.0)
    assert not any("busy" in line for line in machine.timing_traps())
