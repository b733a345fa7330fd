"""What every test has in common."""

from __future__ import annotations

import os

# The default prewarms workers in every job of more than 10 s. That costs seconds of CPU time each, and hundreds of jobs
# of the tests do not need it. Tests of the default remove the variable (tests/launcher/prewarm/).
os.environ.setdefault("RANKWATCH_STANDBY", "0")
