"""``cd tests && python -m support.simulator``."""

import sys

from support.simulator.cli import simulate

sys.exit(simulate(sys.argv[1:]))
