"""The rules of tests/conftest.py, seen from outside: a skip fails the run, and nothing leaves the machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def outcome(folder: Path, bodies: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on small test files under the project's conftest."""
    shutil.copy(HERE / "conftest.py", folder)
    for name, body in bodies.items():
        (folder / f"test_{name}.py").write_text(f"import pytest, socket, urllib.request\n{body}\n", "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "none.ini",
        "--rootdir=.",
        *options,
    ]
    (folder / "none.ini").write_text("[pytest]\n", "utf-8")
    return subprocess.run([*command, "."], cwd=folder, capture_output=True, text=True, check=False)


NOT_RUN = {
    "mark": "@pytest.mark.skip\ndef test_a(): pass",
    "call": "def test_a(): pytest.skip('no')",
    "import": "pytest.importorskip('a_module_that_is_not_there')",
    "xfail": "@pytest.mark.xfail\ndef test_a(): assert False",
    "xpass": "@pytest.mark.xfail\ndef test_a(): pass",
}

CALLS = [
    "socket.create_connection(('192.0.2.1', 80), timeout=1)",
    "socket.socket().connect(('192.0.2.1', 80))",
    "socket.socket().connect_ex(('192.0.2.1', 80))",
    "urllib.request.urlopen('http://example.org', timeout=1)",
    "socket.getaddrinfo('example.org', 80)",
]

LOOPBACK = """
def test_a():
    with socket.create_server(('127.0.0.1', 0)) as server:
        socket.create_connection(server.getsockname()).close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two"])
def test_a_test_that_is_not_run_fails_the_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = outcome(tmp_path, NOT_RUN | {"good": "def test_b(): pass"}, *options)
    assert ended.returncode == 1, ended.stdout
    listed = ended.stdout.partition("neither is allowed here")[2]
    assert [name for name in NOT_RUN if f"test_{name}.py" in listed] == list(NOT_RUN)
    assert "test_good.py" not in listed


@pytest.mark.slow
def test_a_run_with_nothing_but_a_skip_fails(tmp_path: Path) -> None:
    assert outcome(tmp_path, {"only": NOT_RUN["import"]}).returncode == 1


@pytest.mark.slow
def test_the_network_is_closed_but_for_loopback(tmp_path: Path) -> None:
    bodies = {f"n{i}": f"def test_a(): {call}" for i, call in enumerate(CALLS)}
    ended = outcome(tmp_path, bodies | {"loopback": LOOPBACK})
    assert f"{len(CALLS)} failed, 1 passed" in ended.stdout
    assert ended.stdout.count("NetworkUseError: a test tried to reach") >= len(CALLS)
