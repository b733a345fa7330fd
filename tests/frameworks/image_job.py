"""A rank without torch: sections, steps and heartbeats. Arguments: the monitor's address, and the id of the job."""

from __future__ import annotations

import sys
import time

import rankwatch

STEPS = 40


def main() -> None:
    monitor, job = sys.argv[1:]
    rankwatch.init(monitor=monitor, job_id=job, rank=0, world_size=1, export_interval=0.2)
    with rankwatch.section("init"):
        time.sleep(0.05)
    for _ in range(STEPS):
        with rankwatch.step(), rankwatch.section("forward"):
            time.sleep(0.02)
        rankwatch.heartbeat()
    rankwatch.shutdown()


if __name__ == "__main__":
    main()
