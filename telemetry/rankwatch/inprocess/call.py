"""One call of a wrapped function, from its first iteration to its result.

::

    plan -> environment, process-group address -> function -> all ranks finished -> result
      ^                                               |
      |                                       interrupted, on all ranks
      |                                               |
      +-- agree <- check in <- health check <- finalize <- process groups destroyed

The call ends otherwise when no rank can continue (``IterationPlan.abandoned``), when this rank is excluded, or by
``SystemExit`` or ``KeyboardInterrupt``. Then the process ends, its launcher sees the exit code and restarts all
ranks. Under a launcher that restarts all ranks at any exit, an excluded rank is parked instead: it waits for the end.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, cast

from rankwatch.inprocess import abort, rank_process, store
from rankwatch.inprocess.assignment import KeepWorldSize, initial_places
from rankwatch.inprocess.coordination import DONE, INTERRUPTED, Coordination
from rankwatch.inprocess.decision import FailureKind, FailureRecord, IterationPlan, RestartRules, decide, is_expendable
from rankwatch.inprocess.interruption import Interruption
from rankwatch.inprocess.monitor_thread import MonitorThread, at_step
from rankwatch.inprocess.options import Callback, WrapperOptions
from rankwatch.inprocess.state import (
    FaultCounterExceededError,
    FunctionResult,
    HealthCheckError,
    InProcessError,
    Mode,
    RankShouldRestart,
    State,
    clear_frames,
    describe,
    is_collective_error,
    is_store_error,
    named,
    report_abandoned,
    report_expendable,
    report_restart,
    state_of,
)
from rankwatch.inprocess.watchdog import Watchdog

_log = logging.getLogger("rankwatch")

ITERATION_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
"""Environment variables that are set again in each iteration."""

_calls = 0
_current: Call | None = None


def current() -> Call | None:
    """Return the call that this process is in."""
    return _current


class Call:
    """See the header. Used once."""

    def __init__(self, options: WrapperOptions) -> None:
        self.options = options
        self.state: State | None = None
        self.monitor_thread: MonitorThread | None = None
        self.interruption: Interruption | None = None
        self._rank = int(os.environ.get("RANK", "0"))
        self._world = int(os.environ.get("WORLD_SIZE", "1"))
        self._environment = {name: os.environ.get(name) for name in ITERATION_VARIABLES}
        self._rules = RestartRules(
            options.rank_assignment or KeepWorldSize(),
            options.granularity,
            options.max_rank_faults,
            options.max_restarts,
        )
        self._watchdog: Watchdog | None = None
        self._coordination: Coordination | None = None
        self._last_error: Exception | None = None

    def run(self, function: Callable[[], Any]) -> Any:
        """Run the function until all active ranks have finished it.

        Raises:
            InProcessError: no restart within these processes is possible any more.
        """
        global _calls, _current
        if _current is not None:
            raise InProcessError("a wrapped function calls a wrapped function; wrap the outer one only")
        if abort.groups_exist():
            raise InProcessError("a process group exists already; create it inside the wrapped function")
        _current, _calls = self, _calls + 1
        try:
            self._start()
            value = self._iterations(function)
            report_expendable(expendable=False)
            return value
        except Exception as error:
            report_expendable(expendable=False)
            if is_store_error(error):
                raise InProcessError(f"the coordination store is lost: {error}") from error
            if not isinstance(error, InProcessError):  # raised by a callback
                self._mark_gone(error)
            raise
        except BaseException as exit_:
            self._mark_gone(exit_)
            raise
        finally:
            _current = None
            self._close()

    # Beginning and end ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        timeout, world = self.options.barrier_timeout, self._world
        host, port, prefix = store.locate(
            world=world, rank=self._rank, call=_calls, port=self.options.store_port, timeout=timeout
        )
        self._coordination = Coordination(host, port, prefix, world, timeout)
        own = rank_process.own(self._rank, host, port)
        self._coordination.register(own)
        self._members = self._coordination.members(world, timeout)
        self._nodes = [member.node for member in self._members]
        self._watchdog = Watchdog(self.options.monitor_process_interval, self.options.termination_grace_time)
        self.interruption = Interruption()
        connection = Coordination(host, port, prefix, world, timeout)
        self.monitor_thread = MonitorThread(
            own, self._members, self.options, connection, self._watchdog, self.interruption
        )
        self.monitor_thread.on_abort = lambda: self._call(self.options.abort)
        self.monitor_thread.start()

    def _close(self) -> None:
        if self.monitor_thread is not None:
            self.monitor_thread.stop()
        if self._watchdog is not None:
            self._watchdog.close()
        if self.interruption is not None:
            self.interruption.close()
        if self._coordination is not None:
            try:
                self._coordination.deregister(self._rank, self._world)
            except RuntimeError:
                _log.debug("the coordination store has ended before this rank")
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _iterations(self, function: Callable[[], Any]) -> Any:
        options, peers = self.options, self._peers
        first = initial_places(self._world, options.active_world_size, self._nodes, self._rules.assign)
        if first is None:
            raise InProcessError(f"rank_assignment makes none of the {self._world} ranks active")
        plan, interrupted_at = IterationPlan(0, first.places, first.reserves), 0.0
        while True:
            self.state = state_of(plan, self._rank, self._world)
            if plan.abandoned:
                self._abandon(plan)
            if self._rank in plan.excluded:
                return self._leave(plan, plan.excluded[self._rank])
            result = self._iterate(plan, function, interrupted_at)
            status = peers.end_status(plan.iteration)
            if status == DONE:
                self._call(options.completion)
                return result.value
            if not status:  # a reserve that was recorded as lost: the others continue
                return self._leave(plan, peers.lost()[self._rank])
            plan = self._agree_on_next(plan, result)
            interrupted_at = self._thread.interrupted_at

    # One iteration ----------------------------------------------------------------------------------------------------

    def _iterate(self, plan: IterationPlan, function: Callable[[], Any], interrupted_at: float) -> FunctionResult:
        """Run one iteration and return how the function ended on this rank."""
        assert self.interruption is not None, "the call has started"
        result = FunctionResult()
        report_expendable(expendable=is_expendable(plan, self._rank, self._nodes, self._rules))
        # The interpreter raises a pending interruption at calls and backward jumps; the inner handlers contain none.
        try:
            try:
                self.interruption.arm()
                self._thread.begin(plan)
                self._run_interruptible(plan, function, result, interrupted_at)
            except RankShouldRestart as interruption:
                result.interruption = interruption
            except BaseException as exit_:  # noqa: BLE001 - raised again below
                result.exit = exit_
            self.interruption.disarm()
        except RankShouldRestart:
            self.interruption.disarm()
        if result.exit is not None:
            raise result.exit
        self._record_failure(plan, result)
        return result

    def _record_failure(self, plan: IterationPlan, result: FunctionResult) -> None:
        """Record what the function has raised, unless it is a consequence of the abort."""
        peers, error = self._peers, cast("BaseException | None", result.error)
        status = peers.end_status(plan.iteration)
        if error is None and not status and result.interruption is not None and self._rank not in peers.lost():
            error = result.interruption  # raised by the function itself
        if error is not None and not (status and self._thread.aborting):
            kind = FailureKind.COLLECTIVE if is_collective_error(error) else FailureKind.RAISED
            what = describe(error) + at_step()
            peers.interrupt(plan.iteration, FailureRecord(self._rank, kind, what, self._thread.progress.steps))
        result.interruption = None

    def _run_interruptible(
        self, plan: IterationPlan, function: Callable[[], Any], result: FunctionResult, interrupted_at: float
    ) -> None:
        """Do everything that may be interrupted; an exception of the function is kept in the result."""
        try:
            self._set_environment(plan)
            self._call(self.options.initialize)
            self._check_health()
            if self._rank in plan.places:
                report_restart(plan, self._rank, time.monotonic() - interrupted_at)
                result.value = function()
                self._thread.finish()
                self._peers.complete(plan.iteration, self._rank, len(plan.places))
                timeout: float | None = self.options.completion_timeout
            else:
                timeout = None
            if not self._peers.wait_for_end(plan.iteration, timeout):
                late = next((r for r in plan.places if r not in self._peers.completed(plan.iteration)), self._rank)
                what = f"did not finish within {timeout:g} s after rank {self._rank}"
                self._peers.interrupt(plan.iteration, FailureRecord(late, FailureKind.NO_PROGRESS, what))
        except Exception as error:  # noqa: BLE001 - restarts exist for whatever the function raises
            result.error = error

    def _set_environment(self, plan: IterationPlan) -> None:
        """Set the environment of an iteration; its first rank chooses the address of the process groups' store."""
        if self._rank not in plan.places:
            return
        first = self._members[plan.places[0]]
        if self._rank == first.rank:
            self._peers.publish_master(plan.iteration, first.address, store.free_port())
        while (master := self._peers.master(plan.iteration)) is None:
            time.sleep(self._peers.poll_interval)
        rank, size = plan.places.index(self._rank), len(plan.places)
        address, port = master
        for name, value in zip(ITERATION_VARIABLES, (str(rank), str(size), address, port, "False"), strict=True):
            os.environ[name] = value

    # Between two iterations -------------------------------------------------------------------------------------------

    def _agree_on_next(self, plan: IterationPlan, result: FunctionResult) -> IterationPlan:
        """Free what the iteration has left behind, and agree with the other ranks on the next one."""
        assert self.state is not None, "an iteration has begun"
        if self._thread.failure is not None:
            raise InProcessError("the coordination store is lost") from self._thread.failure
        self._thread.interrupt_now()
        self._thread.begin_cleanup()
        abort.destroy_groups()
        error, result.value = result.error, None
        if error is not None:
            _log.warning("rank %d: %s", self._rank, describe(error), exc_info=error)
            clear_frames(error)
        self.state = state_of(plan, self._rank, self._world, error)
        unfit = str(error) if isinstance(error, HealthCheckError) else ""
        gc.collect()
        try:
            self._call(self.options.finalize)
            if not unfit:
                self._check_health()
        except Exception as problem:  # noqa: BLE001 - user code; whatever it raises, this rank is unfit
            unfit = f"{problem}" if isinstance(problem, HealthCheckError) else f"finalize {describe(problem)}"
            _log.exception("rank %d is unfit to continue", self._rank)
        self._last_error = error
        self._thread.end_cleanup()
        self._peers.check_in(plan.iteration, self._rank, unfit)
        return self._await_next(plan)

    def _await_next(self, plan: IterationPlan) -> IterationPlan:
        """Wait until all ranks that are not lost have checked in; the first to see that proposes the next plan."""
        deadline, next_check = time.monotonic() + self.options.barrier_timeout, 0.0
        while (following := self._peers.plan(plan.iteration + 1)) is None:
            if self._thread.failure is not None:
                raise InProcessError("the coordination store is lost") from self._thread.failure
            now = time.monotonic()
            if now >= next_check:
                next_check = now + 4 * self._peers.poll_interval
                lost, checked_in = self._peers.lost(), self._peers.checked_in(plan.iteration)
                missing = [r for r in (*plan.places, *plan.reserves) if r not in lost and r not in checked_in]
                if not missing:
                    unfit = {rank: why for rank, why in checked_in.items() if why}
                    records = self._peers.records(plan.iteration)
                    self._peers.propose(decide(plan, records, lost, unfit, self._nodes, self._rules))
                    continue
                if now > deadline and self._rank in lost:
                    raise HealthCheckError(f"rank {self._rank} is excluded: {lost[self._rank]}")
                for rank in missing if now > deadline else ():
                    self._peers.mark_lost(rank, f"it did not come back within {self.options.barrier_timeout:g} s")
            time.sleep(self._peers.poll_interval)
        return following

    # Leaving ----------------------------------------------------------------------------------------------------------

    def _leave(self, plan: IterationPlan, why: str) -> Any:
        """Raise, since this rank is excluded; under torchelastic wait for the end, since an exit restarts all ranks."""
        self._terminate()
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            exceeds = self._rules.exclude_after(plan.fault_counts.get(self._rank, 0))
            kind = FaultCounterExceededError if exceeds else HealthCheckError
            raise kind(f"rank {self._rank} is excluded: {why}") from self._last_error
        _log.warning("rank %d is parked until the job ends: %s", self._rank, why)
        self._thread.end_cleanup()
        while True:
            if self._peers.wait_for_end(plan.iteration, None) == INTERRUPTED:
                while (following := self._peers.plan(plan.iteration + 1)) is None:
                    time.sleep(self._peers.poll_interval)
                plan = following
                if plan.abandoned:
                    self._abandon(plan)
            else:
                return None

    def _abandon(self, plan: IterationPlan) -> NoReturn:
        text = f"{plan.cause}, and no in-process restart is possible: {plan.abandoned}"
        report_abandoned(self._rank, text)
        self._terminate()
        raise InProcessError(text) from self._last_error

    def _mark_gone(self, error: BaseException) -> None:
        """Record that this rank ends, by an exit or by an error of a callback."""
        if self.state is None:
            return
        what = f"left with {named(error)}"
        with contextlib.suppress(RuntimeError):  # the store has ended already
            self._peers.mark_lost(self._rank, what)
            self._peers.interrupt(self.state.iteration, FailureRecord(self._rank, FailureKind.GONE, what))
        self._terminate()

    def _terminate(self) -> None:
        if self.state is not None:
            self.state = replace(self.state, mode=Mode.TERMINATED)
        try:
            self._call(self.options.terminate)
        except Exception:  # noqa: BLE001 - user code; it must not replace the reason for the exit
            _log.warning("the terminate callback raised", exc_info=True)

    # ------------------------------------------------------------------------------------------------------------------

    @property
    def _peers(self) -> Coordination:
        assert self._coordination is not None, "the call has started"
        return self._coordination

    @property
    def _thread(self) -> MonitorThread:
        assert self.monitor_thread is not None, "the call has started"
        return self.monitor_thread

    def _call(self, callback: Callback | None) -> None:
        if callback is not None and self.state is not None:
            callback(self.state)

    def _check_health(self) -> None:
        """Run the health check.

        Raises:
            HealthCheckError: this rank may not continue.
        """
        assert self.state is not None, "a plan was made"
        if self.options.health_check is None or self.state.mode is Mode.TERMINATED:
            return
        try:
            self.options.health_check(self.state)
        except HealthCheckError:
            raise
        except Exception as error:
            raise HealthCheckError(f"its health check {describe(error)}") from error
