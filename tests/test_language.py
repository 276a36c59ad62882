"""What is written for people: British spelling, no traces of the machine it was written on, LF line ends."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {
    ".venv",
    ".venv-peers",
    ".git",
    "_build",
    "node_modules",
    "vendor",
    "data",
    "build",
    "dist",
    "__pycache__",
    "results",
}
TEXT = {".py", ".pyi", ".md", ".ipynb", ".toml", ".txt", ".yml", ".cfg", ".css", ".js", ".mjs", ".svg", ".bib", ""}


def project_files(*suffixes: str) -> list[Path]:
    """Return the files of ours that end so."""
    return [
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
        and path.suffix in suffixes
        and not LEFT_OUT & set(path.relative_to(ROOT).parts)
        and not any(part.endswith((".egg-info", "_cache", ".hypothesis")) for part in path.parts)
    ]


# ---- Spelling --------------------------------------------------------------------------------------------------------

_STEMS = (
    "characteri|dequanti|discreti|emphasi|factori|generali|initiali|locali|maximi|memori|minimi|normali|optimi|organi"
    "|paralleli|prioriti|quanti|randomi|reali|recogni|seriali|speciali|standardi|summari|synchroni|utili|vectori|visuali"
)
AMERICAN = re.compile(
    rf"\b(?:(?:{_STEMS})z(?:e[sdr]?|ers|ing|ation|ations|able)"
    r"|(?:catal|anal|paral)yz(?:e[sdr]?|ing)|tokeniz(?:e[sd]?|ing|ation)"
    r"|(?:col|behavi|neighb|fav|hon|flav)or(?:s|ed|ing|al|ful|ite|hood)?|center(?:s|ed|ing)?|gray(?:s|ed|scale)?"
    r"|(?:label|model|cancel|travel|level|signal)(?:ed|ing)|catalog|defense|fiber)\b",
    re.IGNORECASE,
)


def prose_of_markdown(text: str) -> str:
    """Return what is read: without front matter, code, directive heads, links' addresses, HTML tags and API names."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^(`{3,}|~{3,})(?!\{)[^\n]*\n.*?^\1`*\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^[`~:]{3,}.*$|^:[\w-]+:.*$", "", text, flags=re.MULTILINE)
    # a title or a quotation keeps its author's spelling
    text = re.sub(r"\[[^\]]*\]\(https?:[^)]*\)", " ", text)
    text = re.sub(r'"[^"]{1,200}"', " ", text)
    return re.sub(r"(`+)[^`]+\1|\$[^$]*\$|\]\([^)]*\)|<[^>]+>|https?://\S+", " ", text)


def docstrings(tree: ast.AST) -> list[str]:
    """Return every string that stands as a statement of its own."""
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    alone = [s.value for body in bodies for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)]
    return [constant.value for constant in alone if isinstance(constant.value, str)]


def prose_of_python(source: str) -> str:
    """Return docstrings and comments, without the code and the parameter names inside them."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    pieces = [token.string for token in tokens if token.type == tokenize.COMMENT]
    for doc in docstrings(ast.parse(source)):
        pieces.append(re.sub(r"^\s*(>>>|\.\.\.) .*$|^\s*[\w, *]+ : .*$", "", doc, flags=re.MULTILINE))  # noqa: PERF401
    return prose_of_markdown("\n".join(pieces))


def prose_of_notebook(text: str) -> str:
    """Return the Markdown cells, and the comments and docstrings of the code cells."""
    pieces = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        pieces.append(prose_of_markdown(source) if cell["cell_type"] == "markdown" else prose_of_python(source))
    return "\n".join(pieces)


PROSE = {".md": prose_of_markdown, ".py": prose_of_python, ".pyi": prose_of_python, ".ipynb": prose_of_notebook}


def american_words(text: str, suffix: str) -> list[str]:
    """Return the words that are spelt the other way."""
    return [found[0] for found in AMERICAN.finditer(PROSE[suffix](text))]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".md", "We quantize the weights."),
        (".md", "Its color and behavior."),
        (".md", "[a quantized model](notebooks/03.ipynb)"),
        (".md", "```{note}\nThe normalized row.\n```"),
        (".py", "# the neighboring center\n"),
        (".py", 'def f():\n    """Tokenize a text."""\n'),
        (".ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": ["an optimized ", "loop"]}]})),
        (".ipynb", json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1  # gray"]}]})),
    ],
)
def test_spelling_rule_rejects(suffix: str, text: str) -> None:
    assert american_words(text, suffix)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".md", 'Called "dynamic quantization" in [Post-Training Quantization](https://x.org).'),
        (".md", "Quantise with `quantize_int8`, as in [the paper](https://x.org/quantize)."),
        (".md", "```python\ncq.quantize_model(color='gray')  # quantize\n```\nThe tokenizer."),
        (".md", "quantize_bfp8 and <span style='color: gray'>colour</span>, $normalize$"),
        (".py", 'def quantize(color):\n    """Quantise.\n\n    Parameters\n    ----------\n    color : str\n    """\n'),
        (".ipynb", json.dumps({"cells": [{"cell_type": "code", "source": ["ax.plot(color='gray')"]}]})),
    ],
)
def test_spelling_rule_accepts(suffix: str, text: str) -> None:
    assert american_words(text, suffix) == []


@pytest.mark.parametrize("path", project_files(*PROSE), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_spelling(path: Path) -> None:
    if path != Path(__file__):
        assert american_words(path.read_text("utf-8"), path.suffix) == []


# ---- Nothing of the writer's machine ---------------------------------------------------------------------------------

TRACES = re.compile(
    r"(?<![\w.:/~\"'$}-])/(?:home|root|Users|mnt|work|var/folders|tmp)/\w[^\s\"'`)]*"
    r"|\b[A-Z]:\\+Users\\"
    r"|\.\./shared\b|\bseed-facts\b|\bdesign[ -]docs?\b|\bdesign/[a-z-]+\.md\b"
)


def traces(text: str) -> list[str]:
    """Return absolute paths of one machine, and names of notes that no reader has."""
    return [found[0] for found in TRACES.finditer(text)]


# With a "|" where the rule would otherwise find this very file.
@pytest.mark.parametrize(
    "text", ["see /|home/ann/x.py", " /|tmp/a.log", r"C:\|Users\ann", "in ../|shared", "as seed|-facts say"]
)
def test_trace_rule_rejects(text: str) -> None:
    assert traces(text.replace("|", ""))


@pytest.mark.parametrize("text", ["https://a.org/home/x", "~/work/x", "a/tmp/b", "/proc/cpuinfo", "/usr/bin/chromium"])
def test_trace_rule_accepts(text: str) -> None:
    assert traces(text) == []


@pytest.mark.parametrize("path", project_files(*TEXT), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_traces_and_unix_line_ends(path: Path) -> None:
    data = path.read_bytes()
    assert b"\r\n" not in data
    assert not data or data.endswith(b"\n"), "no newline at the end"
    assert traces(data.decode("utf-8")) == []
