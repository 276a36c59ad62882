"""The house: who may import whom, how large a thing may grow, and what a cached kernel may refer to.

Each rule is a function from source text to a list of complaints, and each is first shown a sample that it must reject.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "cachequant_lib"
SOURCES = sorted(LIBRARY.rglob("*.py"))

# A room may import the rooms named here and itself. Whatever is not named is forbidden.
CORE = {
    "errors": set(),
    "formats": {"errors"},
    "kernels": {"errors"},
    "kv": {"errors", "formats", "kernels"},
    "model": {"errors", "formats", "kernels", "kv"},
    "generation": {"errors", "formats", "kernels", "kv", "model"},
    "evaluate": {"errors", "formats", "kernels", "kv", "model", "generation"},
    "workloads": {"errors", "formats", "kernels", "kv", "model", "generation"},
}
# These look at the core from outside and may import all of it, and each other; the core never imports them.
INSTRUMENTS = {"bench", "checkup", "machine", "results", "figures", "drawings", "interact", "exercises"}
ALLOWED = CORE | {room: set(CORE) | INSTRUMENTS for room in INSTRUMENTS}

# Packages with one door, and packages that no module may load when it is imported.
ONLY_IN = {
    "matplotlib": {"figures"},
    "PIL": {"figures"},
    "ipywidgets": {"interact"},
    "IPython": {"interact"},
}
NEVER_AT_IMPORT = {"torch", "transformers", "huggingface_hub", "gguf"}
BANNED = {"pickle", "dill", "joblib", "shelve", "marshal", "pandas"}
OURS = "cachequant_lib"
BAD_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}

MAX_LIBRARY, MAX_INSTRUMENTS, MAX_CHAPTER, MAX_FILE, MAX_FUNCTION = 6000, 1000, 220, 300, 45
CHAPTER_ROOMS = {"drawings", "exercises"}


def room_of(path: Path) -> str:
    """Return the room a file stands in: its first folder, or its own name at the top."""
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yield every import statement and the dotted name that it loads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield node, base
            if base == "cachequant_lib":  # `from cachequant_lib import kernels` names the room here
                yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported: all but the bodies of functions and type-only blocks."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.stmt):
                yield child
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                waiting.append(child)


# ---- The rules -------------------------------------------------------------------------------------------------------


def wrong_arrows(source: str, room: str) -> list[str]:
    """Imports that run against the arrows, are relative, or go to a package by the wrong door."""
    tree, found = ast.parse(source), []
    early = set(map(id, at_import(tree)))
    for node, name in imports(tree):
        package, _, rest = name.partition(".")
        if name.startswith("."):
            found.append(f"line {node.lineno}: relative import {name!r}")
        elif package == "cachequant_lib":
            target = rest.split(".")[0]
            if target and target != room and target not in ALLOWED.get(room, set()):
                found.append(f"line {node.lineno}: {room} may not import {target}")
        elif package in BANNED:
            found.append(f"line {node.lineno}: {package} is not used in this house")
        elif room not in ONLY_IN.get(package, {room}):
            found.append(f"line {node.lineno}: {package} is imported only in {sorted(ONLY_IN[package])}")
        elif package in NEVER_AT_IMPORT and id(node) in early:
            found.append(f"line {node.lineno}: {package} must be imported inside the function that needs it")
    return found


def unsafe_loads(source: str) -> list[str]:
    """Calls that can read a pickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("torch.load", "eval", "exec") or any(k.arg == "allow_pickle" for k in node.keywords):
                found.append(f"line {node.lineno}: {called} may run what it reads")
    return found


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that hold code: no blanks, comments or docstrings."""
    lines: set[int] = set()
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                lines.difference_update(range(statement.lineno, statement.end_lineno + 1))  # type: ignore[operator]
    return lines


def too_large(source: str) -> list[str]:
    """A file past its budget, or functions past theirs."""
    found, length = [], len(source.splitlines())
    if length > MAX_FILE:
        found.append(f"{length} lines, more than {MAX_FILE}")
    written = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = len(written.intersection(range(node.lineno, node.end_lineno + 1)))  # type: ignore[operator]
            if size > MAX_FUNCTION:
                found.append(f"line {node.lineno}: {node.name} has {size} lines of code, more than {MAX_FUNCTION}")
    return found


def is_jitted(function: ast.FunctionDef) -> bool:
    """Whether a decorator compiles this function (`njit`, `numba.jit(...)`, `cached_njit(...)`, ...)."""
    names = {ast.unparse(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] for d in function.decorator_list}
    return bool(names & {"njit", "jit", "cached_njit", "vectorize", "guvectorize"})


def stale_cache_risks(source: str) -> list[str]:
    """What a compiled function refers to that its on-disk cache does not follow.

    Numba recompiles when the file of the function changes, and for no other reason. So a compiled function may use
    its own arguments, NumPy, Numba and `math`, other compiled functions of the same file, and constants written out in
    the same file; never a name imported from ours, and never something that can be changed after it was compiled.
    Numba also recompiles for another type of an argument, and the type of a `tile` names the source of all kernels: a
    function that takes one may use whatever lies in their folder.
    """
    tree, found = ast.parse(source), []
    values: dict[str, bool] = {}  # module-level name -> whether the cache follows it
    in_tile: set[str] = set()  # names whose source the type of a tile follows
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            values[node.name] = is_jitted(node) or any("intrinsic" in ast.unparse(d) for d in node.decorator_list)
        elif isinstance(node, ast.Import):
            values.update({(a.asname or a.name).split(".")[0]: not a.name.startswith(OURS) for a in node.names})
        elif isinstance(node, ast.ImportFrom):
            outside = node.level == 0 and not (node.module or "").startswith(OURS)
            values.update({a.asname or a.name: outside for a in node.names})
            if (node.module or "").startswith(f"{OURS}.kernels."):
                in_tile.update(a.asname or a.name for a in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            parts = list(ast.walk(node.value))
            names = {n.id for n in parts if isinstance(n, ast.Name)}
            fixed = all(values.get(name, hasattr(builtins, name)) for name in names) and not any(
                isinstance(n, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp) for n in parts
            )
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values.update({t.id: fixed for t in targets if isinstance(t, ast.Name)})
    known = {name for name, safe in values.items() if safe}
    for function in ast.walk(tree):
        if not (isinstance(function, ast.FunctionDef) and is_jitted(function)):
            continue
        safe = known | in_tile if "tile" in {argument.arg for argument in function.args.args} else known
        for node in (n for statement in function.body for n in ast.walk(statement)):
            if isinstance(node, ast.Global | ast.Nonlocal):
                found.append(f"line {node.lineno}: {function.name} declares {node.names}")
            elif isinstance(node, ast.Name) and node.id in values and node.id not in safe:
                found.append(f"line {node.lineno}: {function.name} uses {node.id}, which its cache does not follow")
    return found


# ---- Each rule rejects what it should --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("formats", "from cachequant_lib.kernels import loops"),
        ("kernels", "from cachequant_lib import formats"),
        ("kernels", "import cachequant_lib.kv.base"),
        ("kv", "from cachequant_lib.model.base import Model"),
        ("model", "def f():\n    from cachequant_lib.generation import generate"),
        ("generation", "from cachequant_lib.bench import measure"),
        ("kv", "from . import base"),
        ("bench", "import matplotlib.pyplot as plt"),
        ("figures", "import ipywidgets"),
        ("bench", "import torch"),
        ("model", "class A:\n    import transformers"),
        ("model", "import pickle"),
    ],
)
def test_arrow_rule_rejects(room: str, source: str) -> None:
    assert wrong_arrows(source, room)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("formats", "from cachequant_lib.errors import FormatError"),
        ("model", "from cachequant_lib.kv.base import KVCache\nimport cachequant_lib.model.ops"),
        ("bench", "def f():\n    import torch"),
        ("figures", "import matplotlib\nfrom cachequant_lib.bench import measure"),
        ("model", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ],
)
def test_arrow_rule_accepts(room: str, source: str) -> None:
    assert wrong_arrows(source, room) == []


@pytest.mark.parametrize("source", ["torch.load(p)", "np.load(p, allow_pickle=True)", "eval(text)"])
def test_load_rule_rejects(source: str) -> None:
    assert unsafe_loads(source)


def test_size_rule_counts_code_only() -> None:
    body = "\n".join(["    x = 1"] * (MAX_FUNCTION - 1))
    documented = '"""Say."""\n\n\ndef f():\n    """Long.\n' + "\n" * 50 + '    """\n    # why\n' + body + "\n"
    assert too_large(documented) == []
    assert too_large(documented + "    x = 2\n")
    assert too_large("\n" * (MAX_FILE + 1))


@pytest.mark.parametrize(
    "source",
    [
        "from cachequant_lib.kernels.loops import dot\n@njit(cache=True)\ndef f(a):\n    return dot(a)",
        "SIZES = [32]\n@numba.njit\ndef f(a):\n    return SIZES[0]",
        "def plain(a):\n    return a\n@cached_njit()\ndef f(a):\n    return plain(a)",
        "import cachequant_lib.formats as formats\n@njit\ndef f(a):\n    return formats.G",
        "n = 0\n@njit\ndef f(a):\n    global n\n    n = 1",
        "from cachequant_lib.formats.int8 import f\n@njit\ndef g(tile, a):\n    return f(a)",
        "LIMIT = other.LIMIT\n@njit\ndef f(a):\n    return LIMIT",
    ],
)
def test_cache_rule_rejects(source: str) -> None:
    assert stale_cache_risks(source)


def test_cache_rule_accepts_what_numba_follows() -> None:
    source = (
        "import math\nimport numpy as np\nG = 32\nPAIR = (1, G)\nHALF = np.float32(0.5)\n"
        "@njit(inline='always')\ndef g(a):\n    return a\n"
        "@cached_njit()\ndef f(a):\n    return g(a) + G + HALF + PAIR[0] + math.pi + np.float32(1)\n"
        "from cachequant_lib.kernels.simd import load\n@njit\ndef h(tile, a):\n    return load(tile, a)"
    )
    assert stale_cache_risks(source) == []


# ---- The library keeps them ------------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(LIBRARY).as_posix())


def test_there_is_a_library() -> None:
    assert len(SOURCES) > 10


@EACH
def test_arrows(path: Path) -> None:
    assert wrong_arrows(path.read_text("utf-8"), room_of(path)) == []


@EACH
def test_nothing_read_is_run(path: Path) -> None:
    assert unsafe_loads(path.read_text("utf-8")) == []


@EACH
def test_budgets(path: Path) -> None:
    assert too_large(path.read_text("utf-8")) == []


@EACH
def test_cached_kernels_cannot_go_stale(path: Path) -> None:
    assert stale_cache_risks(path.read_text("utf-8")) == []


def test_every_file_has_a_room() -> None:
    assert {room_of(path) for path in SOURCES} - {"__init__"} <= set(ALLOWED)
    assert not [path for path in SOURCES if path.stem in BAD_NAMES or path.parent.name in BAD_NAMES]


def test_the_library_can_be_read_in_an_afternoon() -> None:
    """Lines of code, so that nobody saves on documentation to keep within the budget.

    What computes and keeps has one budget, what times and draws another, and each chapter its own.
    """
    sizes = {path: len(code_lines(path.read_text("utf-8"))) for path in SOURCES if room_of(path) not in CHAPTER_ROOMS}
    instruments = {path for path in sizes if room_of(path) in INSTRUMENTS | {"workloads"}}
    assert sum(size for path, size in sizes.items() if path not in instruments) <= MAX_LIBRARY
    assert sum(sizes[path] for path in instruments) <= MAX_INSTRUMENTS


@pytest.mark.parametrize("room", sorted(CHAPTER_ROOMS))
def test_a_chapter_draws_and_checks_within_its_budget(room: str) -> None:
    sizes = {path.stem: len(code_lines(path.read_text("utf-8"))) for path in (LIBRARY / room).glob("ch*.py")}
    assert sizes
    assert {stem: size for stem, size in sizes.items() if size > MAX_CHAPTER} == {}


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


# ---- Importing is free -----------------------------------------------------------------------------------------------


def modules_after(statement: str) -> set[str]:
    """Return the modules a fresh interpreter holds after running one statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_bare_import_loads_nothing_heavy() -> None:
    loaded = modules_after("import cachequant_lib")
    heavy = {"numpy", "numba", "llvmlite", "torch", "transformers", "tokenizers", "huggingface_hub", "matplotlib"}
    assert loaded & heavy == set()
    assert {name for name in loaded if name.startswith("cachequant_lib")} == {"cachequant_lib"}
    assert len(loaded - modules_after("pass")) < 120  # a count, since a time would depend on the machine


def test_using_the_library_needs_neither_torch_nor_transformers() -> None:
    loaded = modules_after("import cachequant_lib as cq; [getattr(cq, name) for name in cq.__all__]")
    assert loaded & {"torch", "transformers", "matplotlib", "ipywidgets"} == set()


@pytest.mark.compiled
def test_import_compiles_nothing() -> None:
    code = (
        "import numba.core.dispatcher as d\n"
        "def compile(*a, **k): raise SystemExit('compiled at import')\n"
        "d.Dispatcher.compile = compile\n"
        "import cachequant_lib as cq\n"
        "[getattr(cq, name) for name in cq.__all__]\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
