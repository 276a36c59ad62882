"""The package as somebody else gets it: complete, read-only, without a home, with company, and beside torch."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "cachequant_lib"

# One product through the compiled kernel, checked against NumPy's integers.
ONE_KERNEL = """
import numpy as np
import cachequant_lib as cq
rng = np.random.default_rng(0)
x, w = cq.quantize_int8(rng.normal(size=(3, 70))), cq.quantize_int8(rng.normal(size=(5, 70)))
exact = x.codes.astype(np.int64) @ w.codes.astype(np.int64).T
want = exact * x.scales.astype(float)[:, None] * w.scales.astype(float) / 127**2
np.testing.assert_allclose(cq.matmul_int8(x, w), want, rtol=1e-6)
"""


def environment(**extra: str) -> dict[str, str]:
    """Return this environment without what would tell a child where to find or keep things."""
    hidden = ("NUMBA_CACHE_DIR", "PYTHONPATH", "XDG_CACHE_HOME", "PYTEST_CURRENT_TEST")
    return {k: v for k, v in os.environ.items() if k not in hidden} | extra


def run(code: str, folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, started in `folder`."""
    command = [sys.executable, "-W", "default", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """Build the wheel from a copy, so that nothing is left in the checkout."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "source")
        shutil.copytree(LIBRARY, source / "cachequant_lib", ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, source)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*command, "-w", name, str(source)], check=True)
        yield next(Path(name).glob("*.whl"))


@pytest.fixture
def site(wheel: Path) -> Iterator[Path]:
    """Unpack the wheel into a folder that nobody may write to."""
    folder = Path(tempfile.mkdtemp())
    zipfile.ZipFile(wheel).extractall(folder)
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in paths:
        path.chmod(0o755)
    shutil.rmtree(folder)


def without_root_powers() -> Callable[[], None] | None:
    """Return a start-up step by which even root has to respect file permissions (Linux)."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return None
    libc, drop_from_bounding_set, dac_override = ctypes.CDLL(None), 24, 1
    return lambda: libc.prctl(drop_from_bounding_set, dac_override, 0, 0, 0)


@pytest.mark.slow
def test_wheel_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if ".dist-info/" not in n}
        meta = next(n for n in archive.namelist() if n.endswith("METADATA"))
        metadata = Parser().parsestr(archive.read(meta).decode())
    ours = {p for p in LIBRARY.rglob("*") if p.is_file() and p.suffix not in (".pyc", ".nbi", ".nbc")}
    assert packed == {p.relative_to(ROOT).as_posix() for p in ours}
    assert metadata["Requires-Python"] == "<3.15,>=3.11"
    assert wheel.stat().st_size < 25e6


@pytest.mark.slow
@pytest.mark.compiled
def test_read_only_install_without_a_home(site: Path) -> None:
    code = f"import os\nassert not os.access({str(site)!r}, os.W_OK), 'the test could not make its folder read-only'\n"
    env = environment(HOME="/nonexistent", PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1")
    ended = run(code + ONE_KERNEL, site, env=env, preexec_fn=without_root_powers())
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("Warning") <= 1, ended.stderr


@pytest.mark.slow
@pytest.mark.compiled
def test_eight_processes_share_an_empty_cache(tmp_path: Path) -> None:
    env = environment(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", ONE_KERNEL]
    for _ in range(2):  # first all of them compile, then all of them load
        processes = [subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) for _ in range(8)]
        errors = [p.communicate()[1] for p in processes]
        assert [p.returncode for p in processes] == [0] * 8, errors
    assert list(tmp_path.rglob("*.nbi")), "nothing was cached, so nothing was shared"


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("order", ["import torch, numba", "import numba, torch"])
def test_torch_and_numba_share_a_process(order: str) -> None:
    code = f"{order}\n{ONE_KERNEL}\nassert torch.ones(64, 64).matmul(torch.ones(64, 64))[0, 0] == 64\n{ONE_KERNEL}"
    ended = run(code, ROOT, env=environment())
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.compiled
def test_a_spawned_worker_can_use_kernels(tmp_path: Path) -> None:
    """Forked workers may be killed by GNU OpenMP after a parallel kernel; the README says to spawn, and that works."""
    script = tmp_path / "worker.py"
    body = "\n".join("    " + line for line in ONE_KERNEL.strip().splitlines())
    script.write_text(
        f"import multiprocessing\ndef work():\n{body}\nif __name__ == '__main__':\n    work()\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    child.start(); child.join(); raise SystemExit(child.exitcode)\n",
        "utf-8",
    )
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "spawn" in (ROOT / "README.md").read_text("utf-8")


def test_nothing_forks_and_nothing_hides_a_second_openmp() -> None:
    fork, unsafe = ("get_context(" + q + "fork" for q in "'\""), "KMP_DUPLICATE" + "_LIB_OK"
    words = (*fork, "os." + "fork(", unsafe)
    for folder in ("cachequant_lib", "benchmarks", "notebooks", "book"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.ipynb")]:
            text = path.read_text("utf-8")
            assert not [w for w in words if w in text], path
