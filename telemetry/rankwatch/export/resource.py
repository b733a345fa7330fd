"""Identity of this process, as resource attributes of everything it exports."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rankwatch.contract import semconv
from rankwatch.profiling import nvml
from rankwatch.settings import Settings

AttributeValue = str | int | float | bool


def attributes(settings: Settings, extra: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Resource attributes of this process; ``extra`` are those given to :func:`rankwatch.init`.

    What names the rank is ours: an ``OTEL_RESOURCE_ATTRIBUTES`` that all ranks inherit cannot make two ranks one.
    """
    host, pid, started = socket.gethostname(), os.getpid(), process_start()
    return {
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": version("opentelemetry-sdk"),
        **nvml.identity(settings.local_rank),
        **(settings.resource_attributes or {}),
        **extra,
        semconv.SERVICE_NAME: settings.job_name or "",
        semconv.SERVICE_INSTANCE_ID: f"{host}-{pid}-{started.timestamp():.2f}",
        semconv.HOST_NAME: host,
        semconv.PROCESS_PID: pid,
        semconv.PROCESS_START_TIME: started.isoformat(),
        semconv.JOB_ID: settings.job_id or "",
        semconv.ATTEMPT: settings.attempt,
        semconv.RANK: settings.rank,
        semconv.LOCAL_RANK: settings.local_rank,
        semconv.WORLD_SIZE: settings.world_size,
    }


def process_start() -> datetime:
    """When this process was started: to the clock tick where there is /proc, else now."""
    try:
        # The command's name, in brackets, may hold spaces and brackets itself. The start time is field 22, in ticks.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age = 0.0
    return datetime.fromtimestamp(time.time() - max(0.0, age), UTC)
