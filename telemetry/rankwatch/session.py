"""The session of a rank: init, shutdown, exit and fork.

=============  ==================================================================================================
init()         claims the slots, attaches the hot path to them, starts the liveness and exporter threads; installs the
               handler of the stop signal, where one is set
init() again   does nothing, until shutdown()
shutdown()     detaches the hot path, sends a last report for at most two seconds; also at the interpreter's exit
fork           parent: waits until the exporter thread has finished importing, since a child that imports the same
               module would deadlock, and ends a sampled step; child: records nothing until it calls init()
               itself, and has no signal handler
=============  ==================================================================================================
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rankwatch import launcher_requests, settings
from rankwatch.contract import env
from rankwatch.contract.intervals import burst_spread
from rankwatch.export.exporter import Exporter
from rankwatch.liveness import leaving, stack_dump, uncaught
from rankwatch.liveness.thread import LivenessThread
from rankwatch.liveness.torch_control_plane import ControlPlane, socket_file
from rankwatch.recording import scalars, sections
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.scalars import Scalars
from rankwatch.recording.shared_slots import FORMAT, MAGIC, PHASE, PHASE_RUNNING, PHASE_SHUT_DOWN, PID, Slots
from rankwatch.settings import Settings

if TYPE_CHECKING:
    from rankwatch.export.pipeline import ExportPipeline
    from rankwatch.liveness.stop_signal import StopSignal
    from rankwatch.profiling.profiler import Profiling

LAST_REPORT: Final = 2.0
"""Seconds that shutdown() waits for the last report."""
IMPORT_WAIT: Final = 30.0
"""Seconds that forks wait at most, all together, until the exporter's thread has imported OpenTelemetry; this takes
less than one, and many on a shared file system that a thousand ranks read at once."""

_log = logging.getLogger("rankwatch")
# Reentrant: a signal handler may call shutdown() while init() runs.
_lock = threading.RLock()
_session: _Session | None = None
_hooked = False


def init(
    *,
    monitor: str | None = None,
    token: str | None = None,
    job_id: str | None = None,
    job_name: str | None = None,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    attempt: int | None = None,
    export_interval: float | None = None,
    span_stride: int | None = None,
    attributes: Mapping[str, str | int | float | bool] | None = None,
) -> None:
    """Start recording and exporting this rank's progress. Call it once, early; a second call does nothing.

    Everything may be left to the environment, which the launcher sets; an argument takes precedence.
    ``export_interval`` is in seconds; ``attributes`` are further resource attributes, ``dl.tensor_parallel.rank`` for
    example. Returns within milliseconds and never raises: problems are logged once by the logger ``rankwatch``.
    """
    overrides = {
        "monitor": monitor,
        "token": token,
        "job_id": job_id,
        "job_name": job_name,
        "rank": rank,
        "local_rank": local_rank,
        "world_size": world_size,
        "attempt": attempt,
        "export_interval": export_interval,
        "span_stride": span_stride,
    }
    global _session
    with _lock:
        if _session is not None:
            return
        try:
            loaded, problems = settings.load(overrides)
            for problem in problems:
                _log.warning("%s", problem)
            if not loaded.disabled and not getattr(sys, "_is_gil_enabled", lambda: True)():
                _log.warning("this Python runs without the GIL: the rank is not monitored (PYTHON_GIL=1 enables it)")
            elif not loaded.disabled:
                _session = _Session(loaded, dict(attributes or {}))
                _hook()
                uncaught.install()
        except Exception:  # noqa: BLE001 - boundary to training code, which runs with or without Rankwatch
            _log.warning("rankwatch could not start; this rank trains without monitoring", exc_info=True)


def is_initialized() -> bool:
    """Whether this process records: after :func:`init` (and unless it is switched off), before :func:`shutdown`."""
    return _session is not None


def active_settings() -> Settings | None:
    """The settings of the running session, from arguments and environment; None: there is no session."""
    session = _session
    return session.settings if session is not None else None


def shutdown() -> None:
    """Stop recording, after a last report that takes two seconds at most. May be called at any time, and twice."""
    global _session
    with _lock:
        session, _session = _session, None
    if session is not None:
        session.close()


class _Session:
    def __init__(self, loaded: Settings, attributes: dict[str, str | int | float | bool]) -> None:
        self.settings = loaded
        self._slots, shared = _claim_slots(loaded)
        self.recorder = Recorder(self._slots)
        self._stacks = _enable_stack_dump(loaded) if shared else None
        self._control_plane: ControlPlane | None = None
        if shared:
            leaving.follow(self._slots.words)
            stack_dump.allow_tracing()
            if loaded.control_plane and loaded.slots_dir:
                path = Path(loaded.slots_dir) / socket_file(loaded.local_rank)
                self._control_plane = ControlPlane(path, self.recorder.drop)
        self.exporter: Exporter | None = None
        self.profiling: Profiling | None = None
        self._pushed: Mapping[str, Any] = {}
        if any(loaded.endpoints) and not loaded.otel_disabled:
            reports_values = loaded.rank in (0, loaded.world_size - 1)
            logged = Scalars(self.recorder.drop) if reports_values else None
            scalars.attach(logged)

            def make() -> ExportPipeline:
                from rankwatch.export.pipeline import ExportPipeline
                from rankwatch.export.resource import attributes as identity
                from rankwatch.profiling.profiler import Profiling

                self.profiling = Profiling(self.recorder, loaded)
                self.profiling.configure(self._pushed)
                return ExportPipeline(loaded, identity(loaded, attributes), self.recorder, self.profiling, logged)

            spread = burst_spread(loaded.world_size)
            self.exporter = Exporter(make, self.recorder, loaded.export_interval, spread)
            # Some builds of Kineto log two lines at each profiled step unless this is set before the first one. Set
            # here, because changing the environment later races with other threads that read it.
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        else:
            _log.info("neither %s nor an OTLP endpoint is set; nothing is exported", env.MONITOR_URL)
        self._liveness = LivenessThread(
            self.recorder,
            wake_exporter=self.exporter.wake if self.exporter else _nothing,
            on_settings=self._configure,
        )
        sections.attach(self.recorder)
        if shared and loaded.slots_dir:
            folder = Path(loaded.slots_dir)
            launcher_requests.attach(
                launcher_requests.RequestWriter(folder, loaded.rank, loaded.local_rank, self._slots.words)
            )
        self._liveness.start()
        if self._control_plane is not None:
            self._control_plane.start()
        if self.exporter is not None:
            self.exporter.start()
        self.stop_signal = _take_stop_signal(loaded, self._slots, shared)
        if loaded.inject:
            from rankwatch.faults import inject as faults

            faults.arm(loaded, self.recorder)

    def _configure(self, pushed: Mapping[str, Any]) -> None:
        self._pushed = pushed  # stored first: make() on the exporter thread reads it when profiling is created later
        if self.exporter is not None:
            self.exporter.configure(pushed)
        if self.profiling is not None:
            self.profiling.configure(pushed)

    def close(self) -> None:
        sections.attach(None)
        scalars.attach(None)
        launcher_requests.attach(None)
        if self.stop_signal is not None:
            self.stop_signal.release()
        self._liveness.stop()
        if self._control_plane is not None:
            self._control_plane.stop()
        if self.profiling is not None:
            self.profiling.stop()
        self.recorder.words[PHASE] = PHASE_SHUT_DOWN  # before the last report, which contains it
        if self.exporter is not None:
            self.exporter.stop(LAST_REPORT)
        self.recorder.disconnect()


def _nothing(*_: object) -> None:
    pass


def _claim_slots(loaded: Settings) -> tuple[Slots, bool]:
    """Return the slots to record into, and whether they are the file that this node's launcher reads."""
    slots, shared = Slots.private(), False
    if loaded.slots_dir:
        path = Path(loaded.slots_dir) / env.slots_file(loaded.local_rank)
        try:
            slots = _open_or_create(path)
            shared = True
        except (OSError, ValueError) as error:
            _log.warning("the launcher cannot see this rank: %s: %s", path, error)
    slots.reset()
    slots.claim(rank=loaded.rank, local_rank=loaded.local_rank, world_size=loaded.world_size, attempt=loaded.attempt)
    return slots, shared


def _open_or_create(path: Path) -> Slots:
    """Map the file. An existing one is not recreated: the launcher may have written settings into it already, and
    truncating it would kill processes that still have it mapped.

    Raises:
        ValueError: another living process records into it.
    """
    try:
        slots = Slots.open(path)
    except (FileNotFoundError, ValueError):
        return Slots.create(path)
    words = slots.words
    owner = words[PID]
    if words[MAGIC] == FORMAT and words[PHASE] == PHASE_RUNNING and owner != os.getpid() and _alive(owner):
        slots.close()
        raise ValueError(f"process {owner} already records this rank's progress there")
    return slots


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _enable_stack_dump(loaded: Settings) -> IO[bytes] | None:
    if loaded.stack_signal is None or not loaded.slots_dir:
        return None
    path = Path(loaded.slots_dir) / env.stack_file(loaded.local_rank)
    try:
        return stack_dump.write_stack_on(loaded.stack_signal, path)
    except (OSError, RuntimeError, ValueError) as error:
        _log.warning("signal %d cannot write the stack into %s: %s", loaded.stack_signal, path, error)
        return None


def _take_stop_signal(loaded: Settings, slots: Slots, shared: bool) -> StopSignal | None:
    if loaded.stop_signal is None:
        return None
    if not shared:
        _log.info("no launcher reads this rank's slots; signal %d is left as it is", loaded.stop_signal)
        return None
    from rankwatch.liveness import stop_signal as preemption

    return preemption.take(loaded.stop_signal, slots.words)


def _hook() -> None:
    """Register for exit and fork, once per process: neither registration can be undone."""
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit)
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def _at_exit() -> None:
    leaving.begin()
    shutdown()
    leaving.finish()


def _before_fork() -> None:
    session = _session
    if session is not None and session.exporter is not None:
        session.exporter.settle(IMPORT_WAIT)
    if session is not None and session.profiling is not None:
        session.profiling.before_fork()


def _after_fork_in_child() -> None:
    global _session, _lock
    session, _session, _lock = _session, None, threading.RLock()
    sections.attach(None)
    scalars.attach(None)
    launcher_requests.attach(None)
    if session is not None:
        session.recorder.disconnect()
        if session.stop_signal is not None:
            session.stop_signal.put_back()
