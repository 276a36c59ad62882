"""The two tables of README.md that say what is true today: what was measured, and which chapters exist.

``python -m benchmarks.readme`` writes them between their markers, from the stored results of the reference machine
and from the table of contents. ``--check`` writes nothing and fails if they are out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cachequant_lib.errors import ResultError
from cachequant_lib.results import load_result

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def spread(found: dict[str, float]) -> str:
    """Median and, in brackets, lowest and highest, with three figures or all before the point."""
    return "{} ({} to {})".format(*(f"{found[k]:.{0 if found[k] >= 100 else 1}f}" for k in ("median", "low", "high")))


def measured(record: dict[str, Any]) -> str:
    """Return the headline table of the baseline: each engine at the largest number of threads, both profiles."""
    threads = max(record["data"]["threads"], key=int)
    part, system = record["data"]["threads"][threads], record["system"]
    profiles = record["settings"]["profiles"]
    heads = [f"prefill of {p['prompt_tokens']} | decode of {p['new_tokens']}" for p in profiles.values()]
    lines = [
        f"fp32 GPT-2 small at its true shape, {threads} threads of {system['cpu']}; tokens per second, median of "
        f"{record['settings']['repeats']} rounds (lowest to highest), {record['date'][:10]}.",
        "",
        f"| engine | {' | '.join(heads)} |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, label in record["data"]["engines"].items():
        cells = [
            spread(part["profiles"][profile]["engines"][name]["summary"][metric])
            for profile in profiles
            for metric in ("prefill_tokens_per_s", "decode_tokens_per_s")
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    limits = part["limits"]
    lines += [
        "",
        f"What the bytes allow: one decoded token reads {limits['bytes_per_token'] / 1e6:.0f} MB of weights, and this "
        f"machine reads {limits['read_bandwidth'] / 1e9:.1f} GB/s, so no fp32 engine can pass "
        f"{1 / limits['read_s']:.1f} tokens per second. Made by `{record['command']}`.",
    ]
    return "\n".join(lines)


def chapters(contents: str) -> str:
    """Return the finished chapters, as the table of contents lists them, with the first sentence of each."""
    lines = ["| chapter | in it |", "|---|---|"]
    for name in re.findall(r"^\s*- file: (notebooks/\S+)", contents, re.MULTILINE):
        path = f"{name}.ipynb"
        cell = next(c for c in json.loads((ROOT / path).read_text("utf-8"))["cells"] if c["cell_type"] == "markdown")
        text = "".join(cell["source"])
        title = text.splitlines()[0].lstrip("# ").strip()
        number = int(Path(name).name.split("-")[0])
        lines.append(f"| [{number}. {title}]({path}) | {first_sentence(text)} |")
    return "\n".join(lines)


def first_sentence(text: str) -> str:
    """Return the first sentence of a chapter's header box, after its bold title."""
    flat = " ".join(line.lstrip("> ").strip() for line in text.splitlines()[1:])
    found = re.search(r"\*\*In this chapter\.\*\*\s*(.+?[.!?])(?=\s|$)", flat)
    if found is None:
        raise SystemExit(f"this chapter does not begin with an 'In this chapter.' box: {flat[:60]}")
    return found[1]


def current(readme: str) -> str:
    """Return the README with both tables as they should be."""
    try:
        table = measured(load_result("baseline"))
    except ResultError:
        table = "*No measurement is stored yet; `make bench` makes one.*"
    blocks = {"measured": table, "chapters": chapters((ROOT / "_toc.yml").read_text("utf-8"))}
    for name, text in blocks.items():
        begin, end = f"<!-- {name}: written by `python -m benchmarks.readme` -->", f"<!-- {name}: end -->"
        if begin not in readme or end not in readme:
            raise SystemExit(f"README.md has no marker {begin}")
        before, _, rest = readme.partition(begin)
        readme = f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"
    return readme


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the tables are out of date")
    given = parser.parse_args(arguments)
    stored = README.read_text("utf-8")
    wanted = current(stored)
    if given.check:
        if stored != wanted:
            print("README.md is out of date: run `python -m benchmarks.readme`", file=sys.stderr)
        return int(stored != wanted)
    README.write_text(wanted, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
