"""What every test has in common."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator

import pytest

try:
    from hypothesis import settings

    import support.type_adapters  # noqa: F401
except ImportError:  # the few tests of scripts/matrix.py need none
    pass
else:
    # An example takes as long as the machine makes it take; what takes too long is a matter of benchmarks/.
    settings.register_profile("tests", parent=settings.default, deadline=None)
    settings.load_profile("tests")

# The default prewarms workers in every job of more than 10 s. That costs seconds of CPU time each, and hundreds of jobs
# of the tests do not need it. Tests of the default remove the variable (tests/launcher/prewarm/).
os.environ.setdefault("RANKWATCH_STANDBY", "0")

# Of the terminal in which the tests were started, as workers of pytest-xdist have it: what is printed depends on it.
os.environ.pop("COLUMNS", None)

# A shell that runs the tests in the background has them ignore SIGINT, and all that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turns", type=int, default=1, help="run a share of the files with long tests, by the commit")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests whose turn it is not; tests/trust/ has a turn of its own for each script."""
    turns = config.getoption("--turns")
    if turns == 1:
        return
    from support.turns import in_turn, turn_of_commit

    taking = [item for item in items if item.get_closest_marker("long") and item.path.parent.name != "trust"]
    files = in_turn({str(item.path) for item in taking}, turns, turn_of_commit(turns))
    left_out = {item for item in taking if str(item.path) not in files}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


class _Failures:
    """Prints the name of a test that fails at once: a run that is ended by its limit prints nothing else about it."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._reporter.verbosity <= 0:
            self._reporter.write_line(f" {report.when} of {report.nodeid} failed")


def pytest_configure(config: pytest.Config) -> None:
    if reporter := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(_Failures(reporter))


@pytest.fixture(autouse=True)
def _unused_logger() -> None:
    """The product's logger as it is on import: a launcher that ran in this process has kept its lines from pytest."""
    logger = logging.getLogger("rankwatch")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: the garbage collector leaves it aside."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_of_folders: set[pytest.FixtureDef[object]] = set()
"""Fixtures of package scope that tests have used."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """End fixtures of package scope with the last test of their folder.

    Pytest does that for folders with an ``__init__.py`` and keeps the others' to its end: monitors with hundreds of
    jobs would go on beside all other tests, and a browser's event loop would occupy the thread that they run in.
    """
    try:
        return (yield)
    finally:
        used = [each for found in item._fixtureinfo.name2fixturedefs.values() for each in found]
        _of_folders.update(each for each in used if each.scope == "package")
        for each in list(_of_folders):
            if nextitem is not None and not nextitem.nodeid.startswith(f"{each.baseid}/"):
                _of_folders.remove(each)
                each.finish(item._request)
