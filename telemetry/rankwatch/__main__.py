"""``python -m rankwatch`` is the ``rankwatch`` command."""

from __future__ import annotations

import sys

from rankwatch.cli.main import main

sys.exit(main())
