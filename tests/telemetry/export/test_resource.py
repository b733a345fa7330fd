from __future__ import annotations

import subprocess
import sys
import time

from rankwatch.export.resource import process_start


def test_the_start_of_the_process_is_known_however_late_it_is_asked_for() -> None:
    before = time.time()
    program = "import time, rankwatch.export.resource as r; time.sleep(0.2); print(r.process_start().timestamp())"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    after = time.time()
    assert before - 0.05 <= float(printed) <= after - 0.15  # a clock tick is 10 ms
    first, second = process_start(), process_start()
    assert abs((first - second).total_seconds()) < 0.05
