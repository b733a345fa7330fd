"""What every test has in common."""

from __future__ import annotations

import os

# The default prewarms interpreters in every job of more than 10 s: seconds of CPU time each that hundreds of jobs of the
# tests do not need. Tests of the default remove the variable (tests/launcher/prewarm/).
os.environ.setdefault("RANKWATCH_STANDBY", "0")
