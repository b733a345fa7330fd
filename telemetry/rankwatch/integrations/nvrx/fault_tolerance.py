"""``RankMonitorClient``, as NVRx 0.4.1 has it: sections, heartbeats, calculated timeouts, and no collective.

How this works
--------------
==========================  ========================================================================================
sections, heartbeats        a few integers in this rank's slots; nobody is waited for
``section_timeouts``        what the launcher handed down, and over it what was calculated
``calculate_and_set_...``   takes what the monitor has learned for the whole job; rank 0 has it put in force, which is a
                            change of the job's policy. What the monitor has not told yet is taken over when it has
``load_state_dict``         the same with what an earlier run calculated
==========================  ========================================================================================

NVRx raises where it is misused or has seen too little. Nobody handles these errors, so they would end the training;
here they are said in the log, and the call does nothing.
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
from rankwatch.integrations.nvrx import config, timeouts
from rankwatch.integrations.nvrx.config import FaultToleranceConfig
from rankwatch.integrations.nvrx.open_sections import OpenSections
from rankwatch.integrations.nvrx.timeouts import HeartbeatTimeouts, SectionTimeouts
from rankwatch.integrations.nvrx.workload import RankInfo, WorkloadAction, WorkloadControlRequest, group_rank
from rankwatch.integrations.shared.shared_session import OwnSession
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

LOOK_AGAIN: Final = 2.0
"""Seconds between two looks for limits that the monitor has not told yet."""

_connected: weakref.WeakSet[RankMonitorClient] = weakref.WeakSet()
"""Clients that are initialized now: whoever uses one counts its steps by it."""


class RankMonitorClientError(Exception):
    """The name that callers import. Nothing here raises it."""


class RankMonitorClient:
    """One rank's connection. Several may exist one after the other, each from ``init_`` to ``shutdown_``."""

    CURRENT_TIMEOUTS_STATE_KEY = timeouts.STATE_KEY

    def __init__(self) -> None:
        self.is_initialized = False
        self.rank_info: RankInfo | None = None
        self.cfg: FaultToleranceConfig | None = None
        self.loaded_hb_timeouts: HeartbeatTimeouts | None = None
        self.loaded_section_timeouts: SectionTimeouts | None = None
        self.logger = logging.getLogger("RankMonitorClient")
        self.sections = OpenSections()
        self._calculated_beats = HeartbeatTimeouts()
        self._calculated = SectionTimeouts()
        self._session = OwnSession()
        self._wanted: set[str] = set()
        self._watching: threading.Event | None = None
        # Reentrant: the thread that looks for late limits takes it too.
        self._lock = threading.RLock()

    # From and to ------------------------------------------------------------------------------------------------------

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:  # noqa: ARG002 - see below
        """Begin. Calls :func:`rankwatch.init` if nobody has.

        ``num_warmup_iters`` is what later versions of NVRx take, for what the monitor finds out by itself: the first
        run of a section in each process teaches nothing.
        """
        if self.is_initialized:
            self.logger.warning("init_workload_monitoring() was called twice; the second call does nothing")
            return
        self.rank_info = RankInfo.get_for_current_rank()
        rank = group_rank()
        self._session.begin(rank=int(rank) if rank is not None and "RANK" not in os.environ else None)
        self.is_initialized = True
        _connected.add(self)
        self.cfg = config.in_force()
        self._load()

    def shutdown_workload_monitoring(self) -> None:
        """End; sections that are still open are closed. Ends Rankwatch's session too, unless others use it."""
        if not self.is_initialized:
            return
        self.is_initialized = False
        _connected.discard(self)
        if self._watching is not None:
            self._watching.set()
        self.sections.close_all(completed=False)
        self._session.end()

    # While training ---------------------------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        """Say that this rank is alive and well."""
        if self._ready("send_heartbeat"):
            rankwatch.heartbeat()

    def start_section(self, section: str) -> None:
        """Open a section; any name will do. One that is called ``step`` counts an iteration when it is closed."""
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
        """Ask the launcher to leave this node out, or to stop the job; acted on at once."""
        action = getattr(req.action, "name", str(req.action))
        if action == WorkloadAction.ExcludeThisNode.name:
            rankwatch.exclude_node(req.description)
        elif action == WorkloadAction.ShutdownWorkload.name:
            rankwatch.stop_job(req.description)

    # Timeouts ---------------------------------------------------------------------------------------------------------

    @property
    def section_timeouts(self) -> SectionTimeouts | None:
        """The limits of sections that are in force; None before the first ``init_workload_monitoring()``."""
        if self.cfg is None:
            return None
        limits = config.handed_down() if self.is_initialized else None
        if limits is not None and (limits.sections or limits.out_of_section is not None):
            self.cfg.rank_section_timeouts = dict(limits.sections)
            self.cfg.rank_out_of_section_timeout = limits.out_of_section
        configured = SectionTimeouts(self.cfg.rank_section_timeouts, self.cfg.rank_out_of_section_timeout)
        return self._calculated.over(configured)

    @property
    def hb_timeouts(self) -> HeartbeatTimeouts | None:
        """The limits between heartbeats that are in force; None before the first ``init_workload_monitoring()``."""
        if self.cfg is None:
            return None
        if self._calculated_beats.were_calculated:
            return self._calculated_beats
        initial, later = self.cfg.initial_rank_heartbeat_timeout, self.cfg.rank_heartbeat_timeout
        return HeartbeatTimeouts(initial, later, were_calculated=False)

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,  # noqa: ARG002 - nothing is raised either way
    ) -> bool:
        """Have what the monitor has learned of the sections judged from now on; True: of all that were asked for.

        Returns at once. False: something has not been told by the monitor yet; it is put in force when it has.
        """
        if not self._ready("calculate_and_set_section_timeouts"):
            return False
        learned = rankwatch.learned_timeouts() or LearnedTimeouts()
        wanted = set(learned.sections if selected_sections is None else selected_sections)
        missing = self._take(learned, wanted, outside=calc_out_of_section)
        if missing and self._is_rank_0():  # all ranks miss the same
            self.logger.info("the monitor has not told yet what it learned of: %s", ", ".join(sorted(missing)))
            self._watch_for(wanted & missing)
        return bool(learned) and not missing

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:  # noqa: ARG002 - as above
        """The same with the limits between heartbeats; False where none were calculated."""
        if not self._ready("calculate_and_set_hb_timeouts"):
            return False
        learned, _ = timeouts.of_learned(rankwatch.learned_timeouts() or LearnedTimeouts())
        if learned is None:
            self.logger.info("no limits between heartbeats were calculated; those of the configuration stay")
            return False
        self._put_beats_in_force(learned)
        return True

    # Keeping them -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> Mapping[str, Any]:
        """The calculated limits, in the layout of ``ft_state.json``; equal on all ranks."""
        return timeouts.to_state(self._calculated_beats, self.section_timeouts or self._calculated)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what an earlier run calculated, before or after ``init_workload_monitoring()``."""
        try:
            earlier = ft_state.read(state)
        except (ValueError, TypeError, AttributeError) as error:
            self.logger.warning("the state cannot be used, timeouts are calculated anew: %s", error)
            return
        beats, section = timeouts.of_learned(earlier)
        self.loaded_hb_timeouts = beats or self.loaded_hb_timeouts
        self.loaded_section_timeouts = section or self.loaded_section_timeouts
        if self.is_initialized:
            self._load()

    def _load(self) -> None:
        if self.loaded_section_timeouts is not None:
            with self._lock:
                self._calculated = self.loaded_section_timeouts
            self._put_in_force(self._calculated.policy())
        if self.loaded_hb_timeouts is not None:
            self._put_beats_in_force(self.loaded_hb_timeouts)

    def _take(self, learned: LearnedTimeouts, wanted: set[str], *, outside: bool) -> set[str]:
        """Put what was learned of these in force; return of what nothing was."""
        with self._lock:
            before = self._calculated
            earlier = self.loaded_section_timeouts or SectionTimeouts()
            self._calculated = before.with_learned(learned, wanted, outside=outside, earlier=earlier)
            changed = self._calculated != before
        if changed:
            self._put_in_force(self._calculated.policy())
        missing = wanted - learned.sections.keys()
        return missing | {"the time outside all sections"} if outside and learned.out_of_section is None else missing

    def _put_beats_in_force(self, beats: HeartbeatTimeouts) -> None:
        self._calculated_beats = beats
        self._put_in_force(as_policy(LearnedTimeouts(initial_heartbeat=beats.initial, heartbeat=beats.subsequent)))

    def _put_in_force(self, changes: Mapping[str, Any]) -> None:
        # All ranks call this with the same values; one word to the monitor is enough.
        if changes and self._is_rank_0():
            rankwatch.change_policy(changes)

    # Limits that come late --------------------------------------------------------------------------------------------

    def _watch_for(self, names: set[str]) -> None:
        with self._lock:
            self._wanted |= names
            if not self._wanted or self._watching is not None:
                return
            self._watching = threading.Event()
        watch = threading.Thread(target=self._watch, args=(self._watching,), name="rankwatch-limits", daemon=True)
        watch.start()

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(LOOK_AGAIN):
            learned = rankwatch.learned_timeouts() or LearnedTimeouts()
            with self._lock:
                told = self._wanted & learned.sections.keys()
                self._wanted -= told
                if not self._wanted:
                    self._watching = None
                    stopped.set()
            self._take(learned, told, outside=False)

    def _is_rank_0(self) -> bool:
        return self.rank_info is not None and self.rank_info.global_rank == 0

    def _ready(self, call: str) -> bool:
        if not self.is_initialized:
            self.logger.warning("%s() does nothing: init_workload_monitoring() was not called", call)
        return self.is_initialized


def counts_steps() -> bool:
    """Whether a client is in use in this process, whose section ``step`` counts iterations."""
    return bool(_connected)
