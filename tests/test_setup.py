"""The set-up: every version pinned, everything used is listed, and a reader with the wrong Python is told so."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
LINES = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
PINS = [Requirement(line.partition(" #")[0]) for line in LINES if line and not line.startswith("#")]
DIRECT = {
    canonicalize_name(Requirement(line.partition(" #")[0]).name) for line in LINES if "==" in line and " # " in line
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PEERS = ROOT / "benchmarks" / "peers" / "requirements.txt"  # an environment of their own
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")

# Names under which a package is imported, where they differ from its own.
IMPORTED_AS = {
    "PIL": "pillow",
    "mpl_toolkits": "matplotlib",
    "axe_playwright_python": "axe-playwright-python",
    "yaml": "pyyaml",
    "llama_cpp": "llama-cpp-python",
}


def version_of(pin: Requirement) -> str:
    """Return the one version a pin allows."""
    (specifier,) = pin.specifier
    assert specifier.operator == "==", f"{pin} is not an exact pin"
    return specifier.version


# ---- requirements.txt ------------------------------------------------------------------------------------------------


def test_every_pin_is_exact_and_listed_once() -> None:
    assert all(version_of(pin) for pin in PINS)
    names = [canonicalize_name(pin.name) for pin in PINS]
    assert len(names) == len(set(names))


def test_what_this_environment_holds_is_what_is_pinned() -> None:
    wrong = {}
    for pin in PINS:
        if pin.marker is None or pin.marker.evaluate():
            found = Version(metadata.version(pin.name))
            if found.public != version_of(pin):
                wrong[pin.name] = f"{found} instead of {version_of(pin)}"
    assert not wrong, "run `make install`"


def test_nothing_that_we_use_brings_an_unpinned_package() -> None:
    listed, seen, waiting = {canonicalize_name(pin.name) for pin in PINS}, set(), sorted(DIRECT)
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for text in metadata.requires(name) or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                child = canonicalize_name(need.name)
                # On Linux the usual torch pins its own CUDA libraries, exactly; the CPU-only one brings none.
                if child not in seen and not (name == "torch" and child.startswith(("nvidia-", "cuda-", "triton"))):
                    waiting.append(child)
    assert seen <= listed


def imported_packages() -> dict[str, str]:
    """Return every package outside the standard library that our files import, and one file that does."""
    found = {}
    for folder in ("cachequant_lib", "benchmarks", "tests", "book", "notebooks"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix == ".py":
                sources = [path.read_text("utf-8")]
            elif path.suffix == ".ipynb" and ".ipynb_checkpoints" not in path.parts:
                cells = json.loads(path.read_text("utf-8"))["cells"]
                sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
            else:
                continue
            for source in sources:
                for node in ast.walk(ast.parse(source)):
                    names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                    names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                    found.update({name.split(".")[0]: path.relative_to(ROOT).as_posix() for name in names})
    local = {"cachequant_lib", "benchmarks", "book", "tests"} | {p.stem for p in (ROOT / "book").rglob("*.py")}
    return {k: v for k, v in found.items() if k not in sys.stdlib_module_names and k not in local}


def test_everything_we_import_is_listed_with_its_reason() -> None:
    brought_by = {
        "sphinx": "jupyter-book",
        "docutils": "jupyter-book",
        "myst_nb": "jupyter-book",
        "IPython": "ipykernel",
    }
    brought_by |= {"packaging": "pytest", "llvmlite": "numba", "pybtex": "jupyter-book", "bs4": "jupyter-book"}
    missing = {}
    peers = {
        canonicalize_name(line.partition("==")[0]) for line in PEERS.read_text("utf-8").splitlines() if "==" in line
    }
    for name, path in imported_packages().items():
        package = canonicalize_name(brought_by.get(name, IMPORTED_AS.get(name, name)))
        if package not in (DIRECT | peers if (ROOT / path).parent == PEERS.parent else DIRECT):
            missing[name] = path
    assert not missing


def test_the_library_lives_with_the_pins() -> None:
    pinned = {canonicalize_name(pin.name): version_of(pin) for pin in PINS}
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["book"], *extras["models"]]:
        need = Requirement(text)
        assert need.specifier.contains(pinned[canonicalize_name(need.name)]), text


def test_the_library_names_what_it_imports() -> None:
    named = {canonicalize_name(Requirement(t).name) for t in PROJECT["dependencies"]}
    for path in (ROOT / "cachequant_lib").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        for node in tree.body:  # what runs at import; extras are imported by their own modules or inside functions
            if isinstance(node, ast.Import | ast.ImportFrom) and path.stem not in ("figures", "interact"):
                for name in [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]:
                    top = name.split(".")[0]
                    known = top in sys.stdlib_module_names or top == "cachequant_lib" or canonicalize_name(top) in named
                    assert known, f"{path.name} imports {top}, which pyproject.toml does not name"


def test_supported_pythons_are_the_same_everywhere() -> None:
    assert PROJECT["requires-python"] == ">=3.11,<3.15"
    assert "(3, 11) <= sys.version_info[:2] <= (3, 14)" in MAKEFILE
    classifiers = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert classifiers == ["3.11", "3.12", "3.13", "3.14"]


# ---- Makefile and .ci/run --------------------------------------------------------------------------------------------


@pytest.mark.make
def test_help_names_targets_that_exist() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    offered = set(re.findall(r"^make (\w+)|; make (\w+)", shown, re.MULTILINE))
    for target in {a or b for a, b in offered}:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_every_stage_is_a_target() -> None:
    for stage in re.search(r"^STAGES := (.*)$", MAKEFILE, re.MULTILINE)[1].split():  # type: ignore[index]
        assert re.search(rf"^{stage}: ", MAKEFILE, re.MULTILINE), stage


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a bare copy of the set-up in a folder with a space in its name and no git."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make as a newcomer would, with an empty home."""
    env = (
        {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "MAKE"))}
        | {"HOME": str(folder)}
        | environment
    )
    return subprocess.run(["make", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False)


def stop_lines(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Return our own messages; there should be exactly one."""
    assert ended.returncode != 0
    return [line for line in ended.stdout.splitlines() if line.startswith("Stop: ")]


def fake_python(folder: Path, version: str, *failing: str) -> Path:
    """Write a stand-in for an interpreter in which code holding one of the words fails."""
    words = "\n".join(f'  *"{word}"*) exit 1;;' for word in failing)
    script = folder / "fake python"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = -V ] && echo "Python {version}" && exit 0\ncase "$2" in\n{words}\nesac\nexit 0\n', "utf-8"
    )
    script.chmod(0o755)
    return script


@pytest.mark.make
def test_python_that_is_not_there(elsewhere: Path) -> None:
    (line,) = stop_lines(make(elsewhere, "install", "PYTHON=python3.99"))
    assert "python3.99" in line
    assert "PYTHON=python3.12" in line


@pytest.mark.make
@pytest.mark.parametrize("version", ["3.10.14", "3.15.0"])
def test_python_of_the_wrong_age(elsewhere: Path, version: str) -> None:
    (line,) = stop_lines(make(elsewhere, "install", f"PYTHON={fake_python(elsewhere, version, 'version_info')}"))
    assert f"Python {version}" in line
    assert "3.11 to 3.14" in line


@pytest.mark.make
def test_python_without_venv(elsewhere: Path) -> None:
    (line,) = stop_lines(make(elsewhere, "install", f"PYTHON={fake_python(elsewhere, '3.12.0', 'import venv')}"))
    assert "python3-venv" in line


@pytest.mark.make
def test_full_disk(elsewhere: Path) -> None:
    (line,) = stop_lines(make(elsewhere, "install", f"PYTHON={fake_python(elsewhere, '3.12.0', 'disk_usage')}"))
    assert "3 GB" in line


@pytest.mark.make
@pytest.mark.slow
def test_index_that_cannot_be_reached(elsewhere: Path) -> None:
    closed = "http://127.0.0.1:9/simple"
    ended = make(elsewhere, "install", f"PYTHON={sys.executable}", PIP_INDEX_URL=closed, PIP_CONFIG_FILE=os.devnull)
    (line,) = stop_lines(ended)
    assert "could not reach its package index" in line
    assert not (elsewhere / ".venv" / ".installed").exists()


def test_ci_runs_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)
    assert script.rstrip().splitlines()[-1].startswith("make test")  # its exit code is the script's
