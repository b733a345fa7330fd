"""``python -m rankwatch_monitor`` is ``rankwatch monitor``."""

import sys

from rankwatch_monitor.cli import serve

sys.exit(serve(sys.argv[1:]))
