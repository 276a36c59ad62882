"""Stored results: found by name, or one error that says what there is."""

import json
from pathlib import Path

import pytest

from cachequant_lib.errors import ResultError
from cachequant_lib.results import REFERENCE_MACHINE, load_result


def store(folder: Path, machine: str, name: str, text: str) -> None:
    (folder / machine).mkdir(exist_ok=True)
    (folder / machine / f"{name}.json").write_text(text, encoding="utf-8")


def test_a_result_is_read_from_the_reference_machine_or_the_one_asked_for(tmp_path: Path) -> None:
    for machine in (REFERENCE_MACHINE, "other"):
        store(tmp_path, machine, "speed", json.dumps({"name": "speed", "machine": machine, "data": {}}))
    assert load_result("speed", folder=tmp_path)["machine"] == REFERENCE_MACHINE
    assert load_result("speed", "other", folder=tmp_path)["machine"] == "other"


def test_a_missing_result_says_what_there_is_and_how_to_make_it(tmp_path: Path) -> None:
    store(tmp_path, "other", "speed", "{}")
    with pytest.raises(ResultError, match=r"stored here: other/speed\..*python -m benchmarks nothing"):
        load_result("nothing", folder=tmp_path)
    with pytest.raises(ResultError, match="stored here: none"):
        load_result("nothing", folder=tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "else", "data": {}}', '{"name": "speed"}'])
def test_a_file_that_is_not_a_record_is_refused(tmp_path: Path, text: str) -> None:
    store(tmp_path, REFERENCE_MACHINE, "speed", text)
    with pytest.raises(ResultError, match=r"speed\.json"):
        load_result("speed", folder=tmp_path)
