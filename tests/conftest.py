"""What holds for every test: no network, known thread counts, repeatable random inputs, nothing skipped.

The environment is set before anything imports NumPy, Numba or a hub client, because each reads it only once.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

for _name, _value in {
    "HF_HUB_OFFLINE": "1",  # weights come from the package or not at all
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
    "JUPYTER_PLATFORM_DIRS": "1",  # without it jupyter_core warns about folders that we do not use
}.items():
    os.environ.setdefault(_name, _value)

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci", derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=_QUIET
)
settings.register_profile("interpreted", settings.get_profile("ci"), max_examples=15)  # plain Python loops are slow
settings.register_profile("nightly", deadline=None, max_examples=3000, print_blob=True, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "interpreted" if INTERPRETED else "ci"))


# ---- No network: loopback only ---------------------------------------------------------------------------------------


class NetworkUseError(RuntimeError):
    """A test tried to leave this machine."""


def _is_local(host: object) -> bool:
    if host in (None, "", "localhost", b"localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host)).is_loopback
    except ValueError:
        return False


def _refuse(host: object) -> None:
    if not _is_local(host):
        raise NetworkUseError(f"a test tried to reach {host!r}; tests run offline and may only use 127.0.0.1")


_connect, _connect_ex, _getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo


def _guarded_connect(self: socket.socket, address: Any) -> None:
    if isinstance(address, tuple):  # anything else is a local (Unix) socket
        _refuse(address[0])
    _connect(self, address)


def _guarded_connect_ex(self: socket.socket, address: Any) -> int:
    if isinstance(address, tuple):
        _refuse(address[0])
    return _connect_ex(self, address)


def _guarded_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
    _refuse(host)
    return _getaddrinfo(host, *args, **kwargs)


# ---- Nothing skipped: a skip is a test that nobody runs --------------------------------------------------------------

NOT_RUN: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Close the network for the whole session, workers included."""
    socket.socket.connect = _guarded_connect  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = _guarded_connect_ex  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = _guarded_getaddrinfo


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped or hasattr(report, "wasxfail"):
        NOT_RUN.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        NOT_RUN.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if NOT_RUN and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if NOT_RUN:
        terminalreporter.section("skipped or expected to fail: neither is allowed here", red=True)
        for nodeid in sorted(set(NOT_RUN)):
            terminalreporter.line(nodeid)


# ---- Denormals: a test that has the processor round them to zero would change the tests that follow it ---------------


@pytest.fixture(autouse=True)
def _denormals_stay() -> Iterator[None]:
    yield
    assert float("5e-324") > 0.0, "denormals count as zero since this test"


# ---- Threads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def each_thread_count() -> Iterator[Callable[[], Iterator[int]]]:
    """Yield every number of threads, set; restore it afterwards."""
    import numba

    before = numba.get_num_threads()

    def counts() -> Iterator[int]:
        for count in range(1, numba.config.NUMBA_NUM_THREADS + 1):
            numba.set_num_threads(count)
            yield count

    yield counts
    numba.set_num_threads(before)


# ---- Figures that are written as SVG ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def drawn_well() -> Callable[[str, int], None]:
    """Check one hand-written figure: opaque, small, readable on a phone, and every word on the sheet."""

    def check(drawn: str, most_characters: int) -> None:
        root = ElementTree.fromstring(drawn)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        sheet, ink = list(root)
        assert sheet.attrib["fill"] == "#fff"  # opaque: readable in dark mode
        assert float(ink.attrib["font-size"]) * 339 / width >= 12  # 339 pixels are what a 375-pixel phone leaves
        assert not re.search(r"[' ](nan|-?inf)\b", drawn)
        assert len(drawn) < most_characters
        for word in ink.iter("{http://www.w3.org/2000/svg}text"):
            if word.get("transform"):  # written upwards
                continue
            places = [float(x) for x in word.attrib["x"].split()]  # one for the word, or one for each letter
            wide = 7.2 * (len(word.text or "") if len(places) == 1 else 1) + places[-1] - places[0]
            left = places[0] - {"middle": 0.5, "end": 1.0}.get(word.get("text-anchor", ""), 0.0) * wide
            assert left >= -8, word.text
            assert left + wide <= width + 8, word.text
            assert float(word.attrib["y"]) < height, word.text

    return check
