"""What README.md promises: its tables are current, its code runs, its links and commands exist."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import readme

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md")


def test_tables_are_current() -> None:
    assert readme.README.read_text("utf-8") == readme.current(readme.README.read_text("utf-8"))


def test_check_notices_a_stale_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "README.md"
    stale.write_text(re.sub(r"\| \[\d+\..*", "| old | old |", readme.README.read_text("utf-8")), "utf-8")
    monkeypatch.setattr(readme, "README", stale)
    assert readme.main(["--check"]) == 1
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0


def test_measured_table_says_median_and_spread() -> None:
    summary = {"median": 2.0, "low": 1.0, "high": 3.0}
    engine = {"summary": {"prefill_tokens_per_s": summary, "decode_tokens_per_s": summary}}
    profile = {"prompt_tokens": 8, "new_tokens": 50}
    limits = {"bytes_per_token": 5e8, "read_bandwidth": 2e10, "read_s": 0.025}
    part: dict[str, Any] = {"profiles": {p: {"engines": {"us": engine}} for p in ("short", "long")}, "limits": limits}
    table = readme.measured(
        {
            "data": {"threads": {"1": {}, "2": part}, "engines": {"us": "ours"}},
            "settings": {"profiles": {"short": profile, "long": profile}, "repeats": 5},
            "system": {"cpu": "a CPU"},
            "date": "2026-11-30 17:00 UTC",
            "command": "python -m benchmarks baseline",
        }
    )
    assert "| ours | 2.0 (1.0 to 3.0) |" in table
    assert "40.0 tokens per second" in table


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", readme.README.read_text("utf-8"), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert "bits_per_byte" in printed.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    missing = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in t and not (ROOT / t).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_targets(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make (\w+)|^make (\w+)", (ROOT / page).read_text("utf-8"), re.MULTILINE):
        assert re.search(rf"^{target[0] or target[1]}:", makefile, re.MULTILINE), target


def test_pictures_have_words() -> None:
    assert all(len(alt) > 40 for alt in re.findall(r"!\[([^\]]*)\]", readme.README.read_text("utf-8")))


@pytest.mark.parametrize("page", [*PAGES, "Makefile"])
def test_modules_that_are_run_can_be(page: str) -> None:
    """``python -m package`` without a ``__main__`` may do nothing and say nothing."""
    text = (ROOT / page).read_text("utf-8")
    for name in set(re.findall(r"(?:python|\$\(PY\)) -m ([\w.]+)", text)) - {"venv", "pip"}:
        own = importlib.util.find_spec(name)
        assert own is not None, name
        package = own.submodule_search_locations is not None
        main = importlib.util.find_spec(f"{name}.__main__") if package else own
        assert main is not None, f"{name} has no __main__"
        assert "__main__" in (Path(main.origin or "").name + Path(main.origin or "").read_text("utf-8")), name
