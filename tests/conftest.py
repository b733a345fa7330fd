"""What every test has in common."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest

try:
    from hypothesis import settings
except ImportError:  # the few tests of scripts/matrix.py need none
    pass
else:
    # An example takes as long as the machine makes it take; what takes too long is a matter of benchmarks/.
    settings.register_profile("tests", parent=settings.default, deadline=None)
    settings.load_profile("tests")

# The default prewarms workers in every job of more than 10 s. That costs seconds of CPU time each, and hundreds of jobs
# of the tests do not need it. Tests of the default remove the variable (tests/launcher/prewarm/).
os.environ.setdefault("RANKWATCH_STANDBY", "0")

# A shell that runs the tests in the background has them ignore SIGINT, and all that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: the garbage collector leaves it aside."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
