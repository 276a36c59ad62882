"""What this machine is: processor, caches, memory, libraries, instruction sets. Reads, never measures."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import threadpoolctl

__all__ = ["INSTRUCTION_SETS", "machine_info", "machine_slug", "timing_traps"]

#: LLVM's feature names that change the book's numbers, and what a reader would call them.
INSTRUCTION_SETS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX-512",
    "avx512vnni": "AVX-512 VNNI",
    "avxvnni": "AVX-VNNI",
    "avx512bf16": "AVX-512 BF16",
    "avx512fp16": "AVX-512 FP16",
    "amx-int8": "AMX int8",
    "neon": "NEON",
    "dotprod": "NEON dot product",
    "i8mm": "NEON int8 matrix multiply",
    "sve": "SVE",
}

_LIBRARIES = ("numpy", "numba", "llvmlite", "torch", "transformers", "tokenizers", "threadpoolctl")


def machine_info() -> dict[str, Any]:
    """Everything about this machine that a stored measurement must carry.

    Nothing heavy is imported: versions come from the packages' metadata. Values that the system does not
    tell are ``None`` or empty. No host or user name is recorded.

    Returns
    -------
    dict
        ``cpu``, ``cpu_core`` (LLVM's name for the micro-architecture), ``architecture``, ``cores``,
        ``caches`` (name to bytes), ``memory_bytes``, ``system``, ``python``, ``versions``, ``blas``
        (``name``, ``version``, ``kernel``, ``threads``), ``threading_layer``, ``instruction_sets``,
        ``environment`` (variables that steer threads and kernels) and ``load_average`` (one minute).
    """
    core, sets = _llvm_facts()
    return {
        "cpu": _cpu_name(),
        "cpu_core": core,
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 1,
        "caches": _caches(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": _versions(),
        "blas": _blas(),
        "threading_layer": _threading_layer(),
        "instruction_sets": sets,
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if re.match(r"(OMP|MKL|OPENBLAS|NUMBA|KMP)_(?!CACHE|DUPLICATE)[A-Z0-9_]+$", name)
        },
        "load_average": _load_average(),
    }


def machine_slug(info: dict[str, Any]) -> str:
    """Name the results folder for this kind of machine, such as ``amd-epyc-znver5-2core``. No host names."""
    words = f"{info['cpu']} {info['cpu_core']} {info['cores']}core".lower()
    words = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*?ghz", " ", words)
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(errors="replace"), re.M)
        if found:
            return found[1].strip()
    if platform.system() == "Darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return platform.processor() or platform.machine() or "unknown"


def _llvm_facts() -> tuple[str, list[str]]:
    """LLVM's name of the core, and which of the sets we care about it has."""
    from llvmlite import binding

    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on this architecture
        features = {}
    return binding.get_host_cpu_name(), [label for key, label in INSTRUCTION_SETS.items() if features.get(key)]


def _caches() -> dict[str, int]:
    """Bytes of each cache that core 0 can reach, as Linux tells it; empty elsewhere."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / leaf).read_text().strip() for leaf in ("level", "type", "size"))
        suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
        if size[-1:] in units:
            sizes[f"L{level}{suffix}"] = int(size[:-1]) * units[size[-1]]
    return sizes


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _blas() -> dict[str, Any]:
    """Find the matrix library behind NumPy; ``kernel`` is the CPU it believes it runs on."""
    import numpy  # noqa: F401  (its BLAS must be loaded to be seen)

    for pool in threadpoolctl.threadpool_info():
        if pool["user_api"] == "blas":
            return {
                "name": pool["internal_api"],
                "version": pool.get("version"),
                "kernel": pool.get("architecture"),
                "threads": pool["num_threads"],
            }
    return {"name": "unknown", "version": None, "kernel": None, "threads": None}


def _threading_layer() -> str:
    """Numba's layer if its threads run already, otherwise the first one it would be able to load."""
    numba: Any = importlib.import_module("numba")
    try:
        return str(numba.threading_layer())
    except ValueError:  # no parallel code has run yet
        pass
    wanted = numba.config.THREADING_LAYER
    if wanted in ("tbb", "omp", "workqueue"):
        return str(wanted)
    for layer in numba.config.THREADING_LAYER_PRIORITY:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"numba.np.ufunc.{'workqueue' if layer == 'workqueue' else layer + 'pool'}")
            return str(layer)
    return "unknown"


def _load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def timing_traps() -> list[str]:
    """List what in this process or on this machine would spoil a timing now, a sentence each."""
    traps = []
    if {"torch", "numba"} <= set(sys.modules) and os.environ.get("OMP_MAX_ACTIVE_LEVELS") != "1":
        traps.append(
            "PyTorch and Numba share this process and OMP_MAX_ACTIVE_LEVELS is not 1: after one Numba "
            "parallel loop PyTorch may slow down up to 100 times. Set it before Python starts."
        )
    if core := os.environ.get("OPENBLAS_CORETYPE"):
        traps.append(
            f"OPENBLAS_CORETYPE={core} forces the kernels NumPy multiplies with; "
            "unset it unless you mean to test that processor."
        )
    load, cores = _load_average(), os.cpu_count() or 1
    if load is not None and load > 0.5 * cores:
        traps.append(f"The machine is busy (load {load:.1f} on {cores} cores): times will be too long.")
    return traps
