"""``python -m benchmarks NAME``: run one experiment, print one table, store one file.

Progress goes to standard error, the table to standard output, the record to
``benchmarks/results/<machine>/NAME.json``, or ``NAME-MODEL.json`` for the experiments about quality, which are stored
for each model, and for those on reuse with another model than the default. Ctrl-C leaves earlier results as they were.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    aligned_bits,
    aligned_error,
    aligned_quality,
    aligned_time,
    assembly,
    baseline,
    breakdown,
    combined,
    eviction,
    grid,
    head,
    kernels,
    multiturn,
    oneshot,
    prefix,
    quality,
    quantization,
    records,
    speed,
    stress,
    sweep,
)
from cachequant_lib.errors import CacheQuantError
from cachequant_lib.machine import machine_info, machine_slug, timing_traps
from cachequant_lib.model.registry import MODEL_NAMES, check_name
from cachequant_lib.results import load_result

EXPERIMENTS = {
    "baseline": baseline,
    "prefix": prefix,
    "eviction": eviction,
    "kernels": kernels,
    "assembly": assembly,
    "head": head,
    "speed": speed,
    "quantization": quantization,
    "breakdown": breakdown,
    "oneshot": oneshot,
    "multiturn": multiturn,
    "combined": combined,
    "stress": stress,
    "quality": quality,
    "grid": grid,
    "aligned_bits": aligned_bits,
    "aligned_error": aligned_error,
    "aligned_quality": aligned_quality,
    "aligned_time": aligned_time,
}
DEFAULT_MODEL = "gpt2-random"
PER_MODEL = (
    "quality, grid and AlignedKV: run over a text, stored as NAME-MODEL.json; a sweep continues where it was stopped"
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    lines = "\n".join(f"  {name:17s}{module.TITLE}" for name, module in EXPERIMENTS.items())
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Run one experiment of the book and store what it saw.\n\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=", ".join(EXPERIMENTS))
    made.add_argument("--model", help="default: gpt2-random, GPT-2 small's true shape; of quality and grid: tiny")
    made.add_argument("--threads", type=_counts, default="1,2", help="thread counts, such as 1,2 (default)")
    made.add_argument("--reps", type=_count, default=5, help="timed rounds (default 5)")
    made.add_argument("--out", type=Path, default=records.RESULTS, help="folder for the machine's folder")
    made.add_argument("--machine", help="name of that folder; default: made from the processor's name")
    made.add_argument("--charts-only", action="store_true", help="measure nothing; draw the stored result again")
    more = made.add_argument_group(PER_MODEL)
    more.add_argument("--text", help="a UTF-8 file, heldout, or hub (WikiText-2); default: CACHEQUANT_TEXT or heldout")
    more.add_argument("--window", type=_count, help="tokens fed at a time (default 512)")
    more.add_argument("--minutes", type=_minutes, help="start no job after so long; 0 gathers what is finished")
    more.add_argument("--workers", type=_count, default=1, help="processes (default 1)")
    more.add_argument("--scheduler", help="address of a Dask scheduler, such as tcp://10.0.0.7:8786, to share the work")
    more.add_argument("--work", type=Path, default=sweep.Options().work, help="folder of finished jobs")
    return made


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:  # isdigit() would let "²" through, which int() refuses
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _minutes(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes of at least 0")
    return float(text)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if a result was stored, 1 after an error, 130 after Ctrl-C."""
    given = parser().parse_args(arguments)
    given.model = given.model if given.model is not None else getattr(EXPERIMENTS[given.name], "MODEL", DEFAULT_MODEL)
    try:
        info = machine_info()
        folder = given.out / (given.machine or machine_slug(info))
        name = stored_name(given.name, given.model)
        if given.charts_only:
            record = load_result(name, folder.name, folder=folder.parent)
        else:
            check_name(given.model)  # here, because an experiment may look at its model late, or never
            with records.prepared(folder):
                record = _run(given, info, folder.name, folder / f"{name}.json")
                records.write(record, folder)
        for chart, picture in EXPERIMENTS[given.name].charts(record).items():
            (folder / f"{name}-{chart}.svg").write_text(picture, encoding="utf-8", newline="\n")
        print(EXPERIMENTS[given.name].table(record))
    except (records.BenchmarkError, CacheQuantError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; nothing was written, earlier results are as they were", file=sys.stderr)
        if getattr(EXPERIMENTS[given.name], "PER_MODEL", False):
            print(f"finished jobs are kept in {given.work}: the same command goes on from there", file=sys.stderr)
        return 130
    return 0


def stored_name(experiment: str, model: str) -> str:
    """Name of an experiment's record: ``NAME``, or ``NAME-MODEL`` where each model has its own.

    Of a model in a folder, the folder's name. The experiments on reuse keep the plain name for the default model.
    """
    beside = getattr(EXPERIMENTS[experiment], "BESIDE", False) and model != DEFAULT_MODEL
    if not (beside or getattr(EXPERIMENTS[experiment], "PER_MODEL", False)):
        return experiment
    last = model if model in MODEL_NAMES else Path(model).expanduser().resolve().name
    return f"{experiment}-{re.sub(r'[^A-Za-z0-9_-]+', '-', last).strip('-') or 'model'}"


def _run(given: argparse.Namespace, info: dict[str, Any], machine: str, stored: Path) -> dict[str, Any]:
    for line in timing_traps():
        _say(f"note: {line}")
    start, quiet = time.perf_counter(), records.Quiet()
    experiment, options = EXPERIMENTS[given.name], ["--model", given.model]
    if getattr(experiment, "PER_MODEL", False):
        how = sweep.Options(given.work, given.minutes, given.workers, given.scheduler, stored)
        found = experiment.run(given.model, given.text, given.window, how, _say)
        options += ["--text", Path(given.text).name] if given.text else []
        options += ["--window", str(given.window)] if given.window else []
    else:
        found = experiment.run(given.model, given.threads, given.reps, _say)
        options += ["--threads", ",".join(map(str, given.threads)), "--reps", str(given.reps)]
    elapsed = time.perf_counter() - start
    _say(f"done in {elapsed:.0f} s")
    return {
        "schema": records.SCHEMA,
        "name": stored.stem,
        "title": EXPERIMENTS[given.name].TITLE,
        "machine": machine,
        "date": records.now(),
        "command": shlex.join(["python", "-m", "benchmarks", given.name, *options]),
        "commit": records.commit(),
        "settings": found["settings"],
        "model": found["model"],
        "system": info,
        "quiet": quiet.stop(elapsed),
        "data": found["data"],
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
