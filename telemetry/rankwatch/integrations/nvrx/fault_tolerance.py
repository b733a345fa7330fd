"""NVRx 0.4.1's ``RankMonitorClient``: sections, heartbeats, calculated timeouts; it issues no collective.

==========================  ========================================================================================
sections, heartbeats        a few integers in this rank's slots; never block
``section_timeouts``        the limits from the launcher, overridden by calculated ones
``calculate_and_set_...``   applies the limits that the monitor has learned for the job, by a change of the job's policy
                            from rank 0. Limits that the monitor has not learned yet are applied later
``load_state_dict``         the same with the limits of an earlier run
==========================  ========================================================================================

NVRx raises upon misuse or insufficient data, which its callers do not handle, so that training would end; here these
errors are logged and the call is ignored.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Collection, Mapping
from typing import Any, Final

import rankwatch
from rankwatch.contract import ft_state
from rankwatch.contract.ft_state import LearnedTimeouts
from rankwatch.integrations.nvrx import config, timeouts, workload
from rankwatch.integrations.nvrx.config import FaultToleranceConfig
from rankwatch.integrations.nvrx.open_sections import OpenSections
from rankwatch.integrations.nvrx.timeouts import HeartbeatTimeouts, SectionTimeouts
from rankwatch.integrations.nvrx.workload import RankInfo, WorkloadAction, WorkloadControlRequest, group_rank
from rankwatch.integrations.shared.shared_session import SharedSession
from rankwatch.integrations.shared.state_file import as_policy

__all__ = [
    "FaultToleranceConfig",
    "HeartbeatTimeouts",
    "RankInfo",
    "RankMonitorClient",
    "RankMonitorClientError",
    "SectionTimeouts",
    "WorkloadAction",
    "WorkloadControlRequest",
]

POLL_INTERVAL: Final = 2.0
"""Seconds between two checks for limits that the monitor has not learned yet."""

_connected: weakref.WeakSet[RankMonitorClient] = weakref.WeakSet()
"""Initialized clients, whose section ``step`` counts the steps."""


class RankMonitorClientError(Exception):
    """For callers that import it; never raised."""


class RankMonitorClient:
    """The client of one rank, from ``init_workload_monitoring`` to ``shutdown_workload_monitoring``."""

    CURRENT_TIMEOUTS_STATE_KEY = timeouts.STATE_KEY

    def __init__(self) -> None:
        self.is_initialized = False
        self.rank_info: RankInfo | None = None
        self.cfg: FaultToleranceConfig | None = None
        self.loaded_hb_timeouts: HeartbeatTimeouts | None = None
        self.loaded_section_timeouts: SectionTimeouts | None = None
        self.logger = logging.getLogger("RankMonitorClient")
        self.sections = OpenSections()
        self._calculated_heartbeats = HeartbeatTimeouts()
        self._calculated = SectionTimeouts()
        self._session = SharedSession()
        self._pending: set[str] = set()
        self._heartbeats_pending = False
        self._pending_stopped: threading.Event | None = None
        # Reentrant; also taken by the thread that waits for pending limits.
        self._lock = threading.RLock()

    # Begin and end ----------------------------------------------------------------------------------------------------

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:  # noqa: ARG002 - see below
        """Begin, and call :func:`rankwatch.init` unless the script has.

        ``num_warmup_iters`` of later NVRx versions is ignored: the monitor never learns from the first run of a section
        in a process.
        """
        if self.is_initialized:
            self.logger.warning("init_workload_monitoring() was called twice; the second call does nothing")
            return
        self.rank_info = RankInfo.get_for_current_rank()
        rank = group_rank()
        self._session.begin(rank=int(rank) if rank is not None and "RANK" not in os.environ else None)
        self.is_initialized = True
        _connected.add(self)
        self.cfg = config.effective()
        self._load()
        self._await(set())  # limits that had not been learned when an earlier session of this client ended

    def shutdown_workload_monitoring(self) -> None:
        """End, and close open sections; ends the Rankwatch session unless it is used elsewhere."""
        if not self.is_initialized:
            return
        self.is_initialized = False
        _connected.discard(self)
        with self._lock:
            stopped, self._pending_stopped = self._pending_stopped, None
        if stopped is not None:
            stopped.set()
        self.sections.close_all(completed=False)
        self._session.end()

    # While training ---------------------------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        """Send a heartbeat of this rank."""
        if self._ready("send_heartbeat"):
            rankwatch.heartbeat()

    def start_section(self, section: str) -> None:
        """Open a section of any name. Closing one named ``step`` counts an iteration."""
        if self._ready("start_section"):
            self.sections.open(section)

    def end_section(self, section: str) -> None:
        """Close the section of that name."""
        if self._ready("end_section"):
            self.sections.close(section)

    def end_all_sections(self) -> None:
        """Close all sections that are open."""
        if self._ready("end_all_sections"):
            self.sections.close_all()

    def send_workload_control_request(self, req: WorkloadControlRequest) -> None:
        """Request that the launcher excludes this node or stops the job, immediately."""
        workload.send(req)

    # Timeouts ---------------------------------------------------------------------------------------------------------

    @property
    def section_timeouts(self) -> SectionTimeouts | None:
        """The section limits in effect; None before the first ``init_workload_monitoring()``."""
        if self.cfg is None:
            return None
        limits = config.limits_of_rank() if self.is_initialized else None
        if limits is not None and (limits.sections or limits.out_of_section is not None):
            self.cfg.rank_section_timeouts = dict(limits.sections)
            self.cfg.rank_out_of_section_timeout = limits.out_of_section
        configured = SectionTimeouts(self.cfg.rank_section_timeouts, self.cfg.rank_out_of_section_timeout)
        return self._calculated.over(configured)

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts | None:
        """The heartbeat limits in effect; None before the first ``init_workload_monitoring()``."""
        if self.cfg is None:
            return None
        if self._calculated_heartbeats.were_calculated:
            return self._calculated_heartbeats
        initial, later = self.cfg.initial_rank_heartbeat_timeout, self.cfg.rank_heartbeat_timeout
        return HeartbeatTimeouts(initial, later, were_calculated=False)

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,  # noqa: ARG002 - never raises
    ) -> bool:
        """Apply the section limits that the monitor has learned; True if it has learned all of the selected ones.

        Does not block. Limits that the monitor has not learned yet are applied later.
        """
        if not self._ready("calculate_and_set_section_timeouts"):
            return False
        learned = rankwatch.learned_timeouts() or LearnedTimeouts()
        wanted = set(learned.sections if selected_sections is None else selected_sections)
        missing = self._apply_learned(learned, wanted, outside=calc_out_of_section)
        if missing and self.is_rank_0:  # all ranks miss the same
            self.logger.info("the monitor has not learned limits yet of: %s", ", ".join(sorted(missing)))
            self._await(wanted & missing)
        return bool(learned) and not missing

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:  # noqa: ARG002 - as above
        """Apply the heartbeat limits that the monitor has learned; False if there are none.

        Does not block. The monitor learns them from 16 heartbeats of the average rank, in jobs that send heartbeats
        only; limits that it has not learned yet are applied later.
        """
        if not self._ready("calculate_and_set_hb_timeouts"):
            return False
        learned, _ = timeouts.from_learned(rankwatch.learned_timeouts() or LearnedTimeouts())
        if learned is None:
            self.logger.info("the monitor has not learned heartbeat limits yet; the configured ones remain in effect")
            if self.is_rank_0:
                self._await(set(), heartbeats=True)
            return False
        self._apply_heartbeats(learned)
        return True

    # Saved limits -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> Mapping[str, Any]:
        """Return the calculated limits in the layout of ``ft_state.json``, equal on all ranks."""
        return timeouts.to_state(self._calculated_heartbeats, self.section_timeouts or self._calculated)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the limits of an earlier run, before or after ``init_workload_monitoring()``."""
        try:
            earlier = ft_state.read(state)
        except (ValueError, TypeError, AttributeError) as error:
            self.logger.warning("the state cannot be used, timeouts are calculated again: %s", error)
            return
        beats, section = timeouts.from_learned(earlier)
        self.loaded_hb_timeouts = beats or self.loaded_hb_timeouts
        self.loaded_section_timeouts = section or self.loaded_section_timeouts
        if self.is_initialized:
            self._load()

    def _load(self) -> None:
        if self.loaded_section_timeouts is not None:
            with self._lock:
                self._calculated = self.loaded_section_timeouts
            self._apply(self._calculated.policy())
        if self.loaded_hb_timeouts is not None:
            self._apply_heartbeats(self.loaded_hb_timeouts)

    def _apply_learned(self, learned: LearnedTimeouts, wanted: set[str], *, outside: bool) -> set[str]:
        """Apply learned limits; return the names that have none."""
        with self._lock:
            before = self._calculated
            earlier = self.loaded_section_timeouts or SectionTimeouts()
            self._calculated = before.with_learned(learned, wanted, outside=outside, earlier=earlier)
            changed = self._calculated != before
        if changed:
            self._apply(self._calculated.policy())
        missing = wanted - learned.sections.keys()
        return missing | {"the time outside all sections"} if outside and learned.out_of_section is None else missing

    def _apply_heartbeats(self, beats: HeartbeatTimeouts) -> None:
        self._calculated_heartbeats = beats
        self._apply(as_policy(LearnedTimeouts(initial_heartbeat=beats.initial, heartbeat=beats.subsequent)))

    def _apply(self, changes: Mapping[str, Any]) -> None:
        # All ranks call this with the same values; one request to the monitor is enough.
        if changes and self.is_rank_0:
            rankwatch.change_policy(changes, calculated=True)

    # Pending limits -------------------------------------------------------------------------------------------------

    def _await(self, names: set[str], *, heartbeats: bool = False) -> None:
        with self._lock:
            self._pending |= names
            self._heartbeats_pending |= heartbeats
            if not (self._pending or self._heartbeats_pending) or self._pending_stopped is not None:
                return
            stopped = self._pending_stopped = threading.Event()
        threading.Thread(target=self._poll_pending, args=(stopped,), name="rankwatch-limits", daemon=True).start()

    def _poll_pending(self, stopped: threading.Event) -> None:
        while not stopped.wait(POLL_INTERVAL):
            learned = rankwatch.learned_timeouts() or LearnedTimeouts()
            with self._lock:
                if self._pending_stopped is not stopped:
                    return  # the session has ended; the next one waits by itself
                found = self._pending & learned.sections.keys()
                self._pending -= found
                beats = timeouts.from_learned(learned)[0] if self._heartbeats_pending else None
                self._heartbeats_pending &= beats is None
                if not (self._pending or self._heartbeats_pending):
                    self._pending_stopped = None
                    stopped.set()
            self._apply_learned(learned, found, outside=False)
            if beats is not None:
                self._apply_heartbeats(beats)

    @property
    def is_rank_0(self) -> bool:
        """Whether this is the process of rank 0."""
        return self.rank_info is not None and self.rank_info.global_rank == 0

    def _ready(self, call: str) -> bool:
        if not self.is_initialized:
            self.logger.warning("%s() does nothing: init_workload_monitoring() was not called", call)
        return self.is_initialized


def counts_steps() -> bool:
    """Whether an initialized client counts the steps of this process."""
    return bool(_connected)
