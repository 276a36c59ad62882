"""Read stored measurements: the only place from which a number in the book may come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cachequant_lib.errors import ResultError

__all__ = ["REFERENCE_MACHINE", "load_result"]

#: Folder of the machine whose numbers the book prints.
REFERENCE_MACHINE = "amd-epyc-znver5-2core"

_RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def load_result(name: str, machine: str | None = None, *, folder: Path | str | None = None) -> dict[str, Any]:
    """Read the stored result of one experiment.

    Parameters
    ----------
    name : str
        The experiment, such as ``"baseline"``.
    machine : str, optional
        A folder name under ``benchmarks/results``; by default the book's reference machine.
    folder : path, optional
        Where the machines' folders are; by default ``benchmarks/results`` of the checkout.

    Returns
    -------
    dict
        The JSON record; ``benchmarks.records`` describes its fields.

    Raises
    ------
    ResultError
        No such file, or it is not a result record. The message lists what there is.
    """
    root = Path(folder) if folder is not None else _RESULTS
    path = root / (machine or REFERENCE_MACHINE) / f"{name}.json"
    if not path.is_file():
        stored = sorted(f"{p.parent.name}/{p.stem}" for p in root.glob("*/*.json"))
        raise ResultError(
            f"no stored result {path.parent.name}/{name}; stored here: {', '.join(stored) or 'none'}. "
            f"Results live in the project's checkout; make your own with `python -m benchmarks {name}`."
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise ResultError(f"{path.name} of {path.parent.name} is not readable JSON: {problem}") from problem
    if not isinstance(record, dict) or record.get("name") != name or "data" not in record:
        raise ResultError(f"{path.name} of {path.parent.name} is not a result record of {name!r}")
    return record
