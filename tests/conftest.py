"""What tests may need from the machine, and what happens where it is missing.

A test says what it needs with a marker: shared, browser, nsys or torch; the fixtures below bring theirs along. Where
that is missing, the test is skipped with the reason. ``TRACEKIT_REQUIRE=browser,nsys`` makes a failure of such a skip:
for machines that must have it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

CHECKOUT = Path(__file__).resolve().parent.parent
CHROMIUM_COMMANDS = ("chromium", "chromium-browser", "google-chrome")

settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def shared_folder() -> Path:
    """The folder of shared captures; it need not exist."""
    return Path(os.environ.get("TRACEKIT_SHARED") or CHECKOUT.parent / "shared")


def chromium_path() -> str | None:
    """The first Chromium on the PATH."""
    return next(filter(None, map(shutil.which, CHROMIUM_COMMANDS)), None)


def lacks_shared() -> str | None:
    folder = shared_folder()
    return None if folder.is_dir() else f"no folder {folder}: set TRACEKIT_SHARED"


def lacks_browser() -> str | None:
    if find_spec("playwright") is None:
        return "playwright is not installed"
    return None if chromium_path() else f"no Chromium on the PATH ({', '.join(CHROMIUM_COMMANDS)})"


def lacks_nsys() -> str | None:
    return None if shutil.which("nsys") else "no nsys on the PATH"


def lacks_torch() -> str | None:
    missing = [package for package in ("torch", "nvtx") if find_spec(package) is None]
    return f"{' and '.join(missing)} not installed (extra: trainer)" if missing else None


NEEDS: dict[str, Callable[[], str | None]] = {
    "shared": lacks_shared,
    "browser": lacks_browser,
    "nsys": lacks_nsys,
    "torch": lacks_torch,
}
"""What is missing for a marker, in words; None where nothing is."""


REQUIRED = pytest.StashKey[frozenset[str]]()
"""The markers whose tests must run here. Read once: a test may set the variable for a suite of its own."""


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts a background job (``nohup make test &``) with SIGINT ignored, and children inherit that: tests
    # which interrupt them would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    names = {name.strip() for name in os.environ.get("TRACEKIT_REQUIRE", "").split(",")} - {""}
    if unknown := names - NEEDS.keys():
        raise pytest.UsageError(f"TRACEKIT_REQUIRE names {', '.join(sorted(unknown))}; known: {', '.join(NEEDS)}")
    config.stash[REQUIRED] = frozenset(names)


NOT_REQUIRED = "not required: "
"""Begins the reason of a skip for something that no machine has to have, such as DeepSpeed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, marker in (("shared", "shared"), ("chromium", "browser")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, lacks in NEEDS.items():
        if item.get_closest_marker(name) and (reason := lacks()):
            pytest.skip(f"{name}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    names = [name for name in item.config.stash[REQUIRED] if item.get_closest_marker(name)]
    if report.skipped and names and not hasattr(report, "wasxfail") and NOT_REQUIRED not in skip_reason(report):
        fail(report, names)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips itself while it is imported has no items yet: its reason alone tells what it lacks."""
    report = yield
    if report.skipped and (names := [n for n in collector.config.stash[REQUIRED] if n in skip_reason(report)]):
        fail(report, names)
    return report


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def fail(report: pytest.TestReport | pytest.CollectReport, names: list[str]) -> None:
    why = skip_reason(report)
    report.outcome = "failed"
    report.longrepr = f"skipped, and TRACEKIT_REQUIRE forbids that for {', '.join(sorted(names))}: {why}"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared captures."""
    if reason := lacks_shared():
        pytest.skip(f"shared: {reason}")
    return shared_folder()


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium, for playwright's ``executable_path``."""
    if reason := lacks_browser():
        pytest.skip(f"browser: {reason}")
    path = chromium_path()
    assert path is not None
    return path


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the twins of the samples that have one: ``NAME_fixed``, the same job without its fault."""
    folder = tmp_path_factory.mktemp("twins")
    command = [sys.executable, str(CHECKOUT / "sample_traces" / "make.py"), "--fixed", "--out", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return folder
