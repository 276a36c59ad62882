"""Installing the peers: one that fails takes no other with it, and every line that is installed is a pin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.peers import PEERS, PINS, ROOT, __main__, interpreter, section


def test_each_peer_has_a_section_of_exact_pins_and_a_module() -> None:
    for peer in PEERS:
        lines = section(peer.name)
        assert lines, peer.name
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+|--no-binary [\w-]+", line) for line in lines)
        assert (PINS.parent / f"{peer.name}.py").is_file()
        assert f"class {peer.class_name}(" in (PINS.parent / f"{peer.name}.py").read_text()
    assert section("nothing") == []
    assert section("b", "# [a]\nx==1\n# [b]\n# note\ny==2  # why\n\n# [c]\nz==3\n") == ["y==2"]
    names = re.findall(r"^([\w.-]+)==", PINS.read_text(), re.M)
    assert len(names) - len(set(names)) <= 1  # packaging, to build with and to run with


def test_the_environment_is_its_own_and_ignored() -> None:
    assert interpreter().is_relative_to(ROOT / ".venv-peers")
    assert "/.venv-peers/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("broken", ["llama_cpp_python==", "import openvino"])
def test_one_failure_is_named_and_the_others_are_installed(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "_usable", lambda: True)
    seen: list[str] = []

    def run(command: Sequence[str], variables: Mapping[str, str]) -> int:
        seen.append(" ".join(command))
        if "pip" in command:
            constraints = Path(variables["PIP_CONSTRAINT"]).read_text()
            assert "numpy==" in constraints
            assert "--no-binary" not in constraints
        return int(broken in seen[-1])

    assert __main__.main(run) == 1
    printed = capsys.readouterr().out
    failed = {"llama_cpp_python==": "llama.cpp, Q8_0", "import openvino": "OpenVINO, int8"}[broken]
    assert f"Not installed: {failed}. pip's own words are above" in printed
    installed = next(line for line in printed.splitlines() if line.startswith("Installed in .venv-peers"))
    assert failed not in installed
    assert sum(peer.label in installed for peer in PEERS) == len(PEERS) - 1
    assert sum("pip" in command for command in seen) == len(PEERS)
    assert "runs without them" in printed


def test_all_there_is_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(__main__, "ENVIRONMENT", tmp_path / "peers")  # what does not run is removed
    monkeypatch.setattr(__main__, "_usable", lambda: True)
    assert __main__.main(lambda command, variables: 0) == 0
    assert "Not installed" not in capsys.readouterr().out
    monkeypatch.setattr(__main__, "_usable", lambda: False)
    assert __main__.main(lambda command, variables: 1) == 1  # not even an environment
    assert "Stop: " in capsys.readouterr().err
