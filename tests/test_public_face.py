"""`import cachequant_lib as cq`: the names it offers, each one there, each one documented."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import typing
from pathlib import Path
from typing import Any

import pytest

import cachequant_lib as cq

STUB = Path(cq.__file__).with_suffix(".pyi")

# The whole public face. A name joins or leaves it on purpose: here, in the stub and on the API page together.
PUBLIC = {
    # models
    "load", "fetch", "quantize_model", "heldout_text",
    # formats
    "Scheme", "SchemeTensor", "Int8Tensor", "BFP8Tensor", "quantize_int8", "quantize_bfp8", "dequantize",
    "matmul_int8", "matmul_bfp8", "Float32Linear", "Int8Linear", "BFP8Linear",
    # one request
    "generate", "Generation", "greedy", "sample",
    # keys and values
    "KVCache", "KVBlock", "DenseKV", "PrefixCache", "TokenTrie",
    # measuring
    "perplexity", "Perplexity", "compare", "Comparison",
    "measure", "interleave", "pin_threads", "machine_info", "doctor",
    # errors
    "CacheQuantError", "FormatError", "ContextLengthError", "CapacityError", "CacheError", "TokenError",
    "CheckpointError", "ModelNotFoundError", "ResultError", "SamplingError",
}  # fmt: skip


def sections(doc: str) -> dict[str, str]:
    """Split a numpydoc text into its sections; the summary is under ''."""
    found: dict[str, str] = {}
    title, lines = "", doc.splitlines()
    for line, rule in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        if re.fullmatch(r"-{3,}", rule.strip()) and line.strip():
            title = line.strip()
        found[title] = found.get(title, "") + line + "\n"
    return found


def undocumented(thing: Any) -> list[str]:
    """What a reader of `help(thing)` would miss."""
    doc = inspect.getdoc(thing) or ""
    parts, name = sections(doc), thing.__name__
    summary = doc.split("\n\n")[0].strip()
    if not summary.endswith("."):
        return [f"{name}: no summary sentence"]
    if inspect.isclass(thing):
        if issubclass(thing, Exception):
            return []
        fields = [f.name for f in dataclasses.fields(thing)] if dataclasses.is_dataclass(thing) else []
        text = parts.get("Attributes", "") + parts.get("Parameters", "")
        missing = [f"{name}: field {f} is not described" for f in fields if not re.search(rf"\b{f}\b", text)]
        for key, member in vars(thing).items():
            if (
                not key.startswith("_")
                and callable(getattr(member, "fget", member))
                and not inspect.getdoc(getattr(thing, key))
            ):
                missing.append(f"{name}.{key}: no docstring")
        return missing
    missing = [
        f"{name}: parameter {p} is not described"
        for p in inspect.signature(thing).parameters
        if not re.search(rf"^([\w, ]*, )?{p}(, [\w, ]*)?( : .*)?$|`{p}`", doc, re.MULTILINE)
    ]
    returned = typing.get_type_hints(thing).get("return")
    ours = getattr(returned, "__module__", "").startswith("cachequant_lib.")  # a class of ours says itself what it is
    says = {"Returns", "Yields"} & set(parts) or summary.startswith("Return")
    if returned is not type(None) and not ours and not says:
        missing.append(f"{name}: nothing says what it returns")
    body = ast.parse(inspect.getsource(thing).lstrip()).body[0]
    raised = {
        ast.unparse(n.exc.func) for n in ast.walk(body) if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call)
    }
    return missing + [
        f"{name}: may raise {e}, which is not under Raises" for e in raised if e not in parts.get("Raises", "")
    ]


# ---- The rule rejects what it should ---------------------------------------------------------------------------------


def _bare(x: int) -> int:
    return x


def _no_returns(x: int) -> int:
    """Square.

    Parameters
    ----------
    x : int
    """
    return x * x


def _hides_error(x: int) -> None:
    """Check.

    Parameters
    ----------
    x : int
    """
    if x:
        raise ValueError(x)


@dataclasses.dataclass
class _Fields:
    """Holds one number."""

    number: int


@pytest.mark.parametrize("thing", [_bare, _no_returns, _hides_error, _Fields])
def test_rule_rejects(thing: Any) -> None:
    assert undocumented(thing)


def _good(x: int) -> int:
    """Square.

    Parameters
    ----------
    x : int

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If negative.
    """
    if x < 0:
        raise ValueError(x)
    return x * x


def test_rule_accepts() -> None:
    assert undocumented(_good) == []


# ---- The library keeps it --------------------------------------------------------------------------------------------


def test_public_names_are_the_agreed_ones() -> None:
    assert set(cq.__all__) == PUBLIC


def test_stub_lists_each_name_once_and_in_order() -> None:
    tree = ast.parse(STUB.read_text("utf-8"))
    imported = [a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names]
    listed = next(ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign))
    assert sorted(imported) == sorted(listed) == sorted(set(listed))


def test_dir_shows_them() -> None:
    assert set(dir(cq)) >= PUBLIC


def test_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="quantise_int8"):
        _ = cq.quantise_int8


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_name_is_there_and_documented(name: str) -> None:
    assert undocumented(getattr(cq, name)) == []


@pytest.mark.parametrize("name", sorted(n for n in PUBLIC if n.endswith("Error")))
def test_errors_can_be_caught_both_ways(name: str) -> None:
    error = getattr(cq, name)
    assert issubclass(error, cq.CacheQuantError)
    if name != "CacheQuantError":
        builtin = [
            base
            for base in error.__mro__
            if base.__module__ == "builtins" and base not in (Exception, BaseException, object)
        ]
        assert builtin, f"{name} should also be the built-in error that a reader would expect"


def test_no_name_is_also_a_module() -> None:
    # importing the module would put it in the name's place, and `cq.name()` would call a module
    modules = {path.stem for path in Path(cq.__file__).parent.iterdir()}
    assert modules & set(cq.__all__) == set()
