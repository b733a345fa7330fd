"""One call of a wrapped function, from its first iteration to its result.

How this works
--------------
::

    plan -> enter: environment, where to meet -> function -> all finished -> result
      ^                                             |
      |                                     interrupted, on all ranks
      |                                             |
      +-- agree <- come back <- health check <- finalize <- process groups taken down

What ends this otherwise: nobody can go on (``Plan.gave_up``), this rank may not go on, or it leaves by ``SystemExit``
or ``KeyboardInterrupt``. Then the process ends, its launcher sees the exit code and starts all ranks anew. A rank
whose place was taken, under a launcher that would restart all at its exit, waits for the end instead: it is parked.
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

from rankwatch.inprocess import abort, meeting, members
from rankwatch.inprocess.assignment import KeepWorldSize, first_places
from rankwatch.inprocess.coordination import DONE, INTERRUPTED, Coordination
from rankwatch.inprocess.decision import Kind, Plan, Record, Rules, can_lose, decide
from rankwatch.inprocess.guard import Guard
from rankwatch.inprocess.interruption import Interruption
from rankwatch.inprocess.options import Callback, Options
from rankwatch.inprocess.outcome import Outcome, describe, is_collective, is_store_failure, let_go, state_of
from rankwatch.inprocess.report import say_sparable, tell_given_up, tell_restarted
from rankwatch.inprocess.state import (
    FaultCounterExceededError,
    HealthCheckError,
    InProcessError,
    Mode,
    RankShouldRestart,
    State,
)
from rankwatch.inprocess.watcher import Watcher, at_step

_log = logging.getLogger("rankwatch")

HANDED_OVER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
"""Variables that are set anew in each iteration."""

_calls = 0
_current: Call | None = None


def current() -> Call | None:
    """The call that this process is in."""
    return _current


class Call:
    """See the header. Used once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.state: State | None = None
        self.watcher: Watcher | None = None
        self.interruption: Interruption | None = None
        self._rank = int(os.environ.get("RANK", "0"))
        self._world = int(os.environ.get("WORLD_SIZE", "1"))
        self._environment = {name: os.environ.get(name) for name in HANDED_OVER}
        self._rules = Rules(
            options.rank_assignment or KeepWorldSize(),
            options.granularity,
            options.max_rank_faults,
            options.max_restarts,
        )
        self._guard: Guard | None = None
        self._coordination: Coordination | None = None

    def run(self, function: Callable[[], Any]) -> Any:
        """Run the function until all ranks have finished it.

        Raises:
            InProcessError: that is not to be, in these processes.
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
            say_sparable(sparable=False)
            return value
        except Exception as error:
            say_sparable(sparable=False)  # who leaves otherwise, by SystemExit for example, is done without
            if is_store_failure(error):
                raise InProcessError(f"the coordination store is lost: {error}") from error
            if not isinstance(error, InProcessError):  # a callback's
                self._say_gone(error)
            raise
        except BaseException as leaving:
            self._say_gone(leaving)
            raise
        finally:
            _current = None
            self._close()

    # Beginning and end ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        patience, world = self.options.barrier_timeout, self._world
        host, port, prefix = meeting.find(
            world=world, rank=self._rank, call=_calls, port=self.options.store_port, patience=patience
        )
        self._coordination = Coordination(host, port, prefix, world, patience)
        own = members.own(self._rank, host, port)
        self._coordination.register(own)
        self._members = self._coordination.members(world, patience)
        self._nodes = [member.node for member in self._members]
        self._guard = Guard(self.options.monitor_process_interval, self.options.termination_grace_time)
        self.interruption = Interruption()
        connection = Coordination(host, port, prefix, world, patience)
        self.watcher = Watcher(own, self._members, self.options, connection, self._guard, self.interruption)
        self.watcher.on_abort = lambda: self._call(self.options.abort)
        self.watcher.start()

    def _close(self) -> None:
        if self.watcher is not None:
            self.watcher.stop()
        if self._guard is not None:
            self._guard.close()
        if self.interruption is not None:
            self.interruption.close()
        if self._coordination is not None:
            try:
                self._coordination.say_goodbye(self._rank, self._world)
            except RuntimeError:
                _log.debug("the coordination store is gone already")
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _iterations(self, function: Callable[[], Any]) -> Any:
        options, talk = self.options, self._talk
        begin = first_places(self._world, options.active_world_size, self._nodes, self._rules.assign)
        if begin is None:
            raise InProcessError(f"rank_assignment lets none of {self._world} ranks begin")
        plan, since = Plan(0, begin.places, begin.reserves), 0.0
        while True:
            self.state = state_of(plan, self._rank, self._world)
            if plan.gave_up:
                self._give_up(plan, plan.gave_up)
            if self._rank in plan.out:
                return self._leave(plan, plan.out[self._rank])
            outcome = self._iterate(plan, function, since)
            ended = talk.ended(plan.iteration)
            if ended == DONE:
                self._call(options.completion)
                return outcome.value
            if not ended:  # a reserve that was taken for dead: the others train on
                return self._leave(plan, talk.lost()[self._rank])
            plan = self._come_back(plan, outcome)
            since = self._watch.noticed

    # One iteration ----------------------------------------------------------------------------------------------------

    def _iterate(self, plan: Plan, function: Callable[[], Any], since: float) -> Outcome:
        """Run one iteration, and say how this rank left it."""
        assert self.interruption is not None, "the call has started"
        outcome = Outcome()
        say_sparable(sparable=can_lose(plan, self._rank, self._nodes, self._rules))
        # The interpreter raises what is on its way at calls and at jumps backwards: the inner handlers have none.
        try:
            try:
                self.interruption.arm()
                self._watch.begin(plan)
                self._body(plan, function, outcome, since)
            except RankShouldRestart as struck:
                outcome.struck = struck
            except BaseException as leaving:  # noqa: BLE001 - raised again below
                outcome.leaving = leaving
            self.interruption.disarm()
        except RankShouldRestart:
            self.interruption.disarm()
        if outcome.leaving is not None:
            raise outcome.leaving
        self._say_why(plan, outcome)
        return outcome

    def _say_why(self, plan: Plan, outcome: Outcome) -> None:
        """Record what the function has raised, unless it was the abort's doing."""
        talk, error = self._talk, cast("BaseException | None", outcome.error)
        ended = talk.ended(plan.iteration)
        if error is None and not ended and outcome.struck is not None and self._rank not in talk.lost():
            error = outcome.struck  # raised by the function itself
        if error is not None and not (ended and self._watch.aborting):
            kind = Kind.COLLECTIVE if is_collective(error) else Kind.RAISED
            talk.interrupt(
                plan.iteration, Record(self._rank, kind, describe(error) + at_step(), self._watch.progress.steps)
            )
        outcome.struck = None

    def _body(self, plan: Plan, function: Callable[[], Any], outcome: Outcome, since: float) -> None:
        """All that may be interrupted; an exception of the function is kept in the outcome."""
        try:
            self._enter(plan)
            self._call(self.options.initialize)
            self._check_health()
            if self._rank in plan.places:
                tell_restarted(plan, self._rank, time.monotonic() - since)
                outcome.value = function()
                self._watch.wait()
                self._talk.complete(plan.iteration, self._rank, len(plan.places))
                timeout: float | None = self.options.completion_timeout
            else:
                timeout = None
            if not self._talk.until_ended(plan.iteration, timeout):
                late = next((r for r in plan.places if r not in self._talk.completed(plan.iteration)), self._rank)
                what = f"did not finish within {timeout:g} s after rank {self._rank}"
                self._talk.interrupt(plan.iteration, Record(late, Kind.NO_PROGRESS, what))
        except Exception as error:  # noqa: BLE001 - whatever the function raised is what restarts are for
            outcome.error = error

    def _enter(self, plan: Plan) -> None:
        """Set the environment of an iteration; its first rank says where the process groups meet."""
        if self._rank not in plan.places:
            return
        first = self._members[plan.places[0]]
        if self._rank == first.rank:
            self._talk.offer_master(plan.iteration, first.address, meeting.free_port())
        while (master := self._talk.master(plan.iteration)) is None:
            time.sleep(self._talk.look_every)
        rank, size = plan.places.index(self._rank), len(plan.places)
        address, port = master
        for name, value in zip(HANDED_OVER, (str(rank), str(size), address, port, "False"), strict=True):
            os.environ[name] = value

    # Between two ------------------------------------------------------------------------------------------------------

    def _come_back(self, plan: Plan, outcome: Outcome) -> Plan:
        """Take down what the iteration has left, and agree with the others on the next one."""
        assert self.state is not None, "an iteration has begun"
        if self._watch.failure is not None:
            raise InProcessError("the coordination store is lost") from self._watch.failure
        self._watch.interrupt_now()
        self._watch.leave()
        abort.destroy_groups()
        error, outcome.value = outcome.error, None
        if error is not None:
            _log.warning("rank %d: %s", self._rank, describe(error), exc_info=error)
            let_go(error)
        self.state = state_of(plan, self._rank, self._world, error)
        unfit = str(error) if isinstance(error, HealthCheckError) else ""
        gc.collect()
        try:
            self._call(self.options.finalize)
            if not unfit:
                self._check_health()
        except Exception as problem:  # noqa: BLE001 - whatever it is, this rank may not go on
            unfit = f"{problem}" if isinstance(problem, HealthCheckError) else f"finalize {describe(problem)}"
            _log.exception("rank %d may not go on", self._rank)
        self._last_error = error
        self._watch.rest()
        self._talk.come_back(plan.iteration, self._rank, unfit)
        return self._agree(plan)

    def _agree(self, plan: Plan) -> Plan:
        """Wait until all that are left have come back; whoever sees that first proposes what follows."""
        deadline, look = time.monotonic() + self.options.barrier_timeout, 0.0
        while (after := self._talk.plan(plan.iteration + 1)) is None:
            if self._watch.failure is not None:
                raise InProcessError("the coordination store is lost") from self._watch.failure
            now = time.monotonic()
            if now >= look:
                look = now + 4 * self._talk.look_every
                lost, back = self._talk.lost(), self._talk.back(plan.iteration)
                missing = [r for r in (*plan.places, *plan.reserves) if r not in lost and r not in back]
                if not missing:
                    unfit = {rank: why for rank, why in back.items() if why}
                    records = self._talk.records(plan.iteration)
                    self._talk.propose(decide(plan, records, lost, unfit, self._nodes, self._rules))
                    continue
                if now > deadline and self._rank in lost:
                    raise HealthCheckError(f"rank {self._rank} takes no part any more: {lost[self._rank]}")
                for rank in missing if now > deadline else ():
                    self._talk.lose(rank, f"it did not come back within {self.options.barrier_timeout:g} s")
            time.sleep(self._talk.look_every)
        return after

    # Leaving ----------------------------------------------------------------------------------------------------------

    def _leave(self, plan: Plan, why: str) -> Any:
        """This rank takes no part any more: wait for the end where an exit would restart all, else raise."""
        self._terminate()
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            kind = FaultCounterExceededError if "max_rank_faults" in why else HealthCheckError
            raise kind(f"rank {self._rank} takes no part any more: {why}") from self._last_error
        _log.warning("rank %d is parked until the job ends: %s", self._rank, why)
        self._watch.rest()
        while True:
            if self._talk.until_ended(plan.iteration, None) == INTERRUPTED:
                while (after := self._talk.plan(plan.iteration + 1)) is None:
                    time.sleep(self._talk.look_every)
                plan = after
                if plan.gave_up:
                    self._give_up(plan, plan.gave_up)
            else:
                return None

    def _give_up(self, plan: Plan, why: str) -> NoReturn:
        text = f"{plan.cause}, and no restart in the same processes follows: {why}"
        tell_given_up(self._rank, text)
        self._terminate()
        raise InProcessError(text) from self._last_error

    def _say_gone(self, leaving: BaseException) -> None:
        """This rank leaves by its own wish, or by a person's."""
        if self.state is None:
            return
        what = f"left with {describe(leaving).removeprefix('raised ')}"
        with contextlib.suppress(RuntimeError):  # the store is gone already
            self._talk.lose(self._rank, what)
            self._talk.interrupt(self.state.iteration, Record(self._rank, Kind.GONE, what))
        self._terminate()

    def _terminate(self) -> None:
        if self.state is not None:
            self.state = replace(self.state, mode=Mode.TERMINATED)
        try:
            self._call(self.options.terminate)
        except Exception:  # noqa: BLE001 - a person's code; what this rank leaves for is what counts
            _log.warning("terminate raised", exc_info=True)

    # ------------------------------------------------------------------------------------------------------------------

    _last_error: Exception | None = None

    @property
    def _talk(self) -> Coordination:
        assert self._coordination is not None, "the call has started"
        return self._coordination

    @property
    def _watch(self) -> Watcher:
        assert self.watcher is not None, "the call has started"
        return self.watcher

    def _call(self, callback: Callback | None) -> None:
        if callback is not None and self.state is not None:
            callback(self.state)

    def _check_health(self) -> None:
        """Ask whether this rank may go on.

        Raises:
            HealthCheckError: it may not.
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
