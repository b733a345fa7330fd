"""Which monitor a command asks: the one that is named, else the one that a launcher of this user runs here."""

from __future__ import annotations

import argparse
from typing import Final

from rankwatch.contract import access, env
from rankwatch.contract.access import MonitorAccess
from rankwatch.monitor_client import DEFAULT_MONITOR, EXIT_WRONG, MonitorClient, MonitorError

SHOWN: Final = 8
"""Monitors in one message."""


def client(arguments: argparse.Namespace, timeout: float | None = None) -> MonitorClient:
    """A client of the monitor that the command line, or else the environment names, or else of the user's own.

    An own monitor is taken by its job if JOB is given. Its token is that of its file. The default address gets none:
    whoever listens there would receive it.

    Raises:
        MonitorError: several monitors could be meant, or the address is invalid.
    """
    url, token = locate(arguments.monitor, arguments.token, getattr(arguments, "job", None))
    return MonitorClient(url, token, timeout)


def locate(url: str | None, token: str | None, job: str | None) -> tuple[str, str | None]:
    """Address and token of the monitor to ask.

    Raises:
        MonitorError: several monitors could be meant.
    """
    if url:
        # Also an own monitor may be named, by the address in the launcher's log or by the environment of a rank.
        return url, found.token if (found := access.of(url)) is not None else token
    running = access.running()
    launched, standing = [each for each in running if each.job_id], [each for each in running if not each.job_id]
    own = launched or standing
    if job is not None:
        own = [each for each in launched if each.job_id == job] or standing or launched
    if len(own) > 1:
        raise MonitorError(_choose(own), EXIT_WRONG, unknown=job is not None)
    return (own[0].url, own[0].token) if own else (DEFAULT_MONITOR, None)


def _choose(own: list[MonitorAccess]) -> str:
    listed = "".join(f"\n  {each.url}  job {each.job_id!r} (launcher {each.pid})" for each in own[:SHOWN])
    more = f"\n  and {len(own) - SHOWN} more" if len(own) > SHOWN else ""
    return (
        f"{len(own)} monitors of your launchers run here; name the job, or the monitor with --monitor or "
        f"{env.MONITOR_URL}:{listed}{more}"
    )
