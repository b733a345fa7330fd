"""The launcher as a function, the counterpart of ``torch.distributed.launcher.api``.

``elastic_launch(config, train)(arguments)`` runs ``train`` on each rank, watched and restarted as by ``rankwatch run``.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from torch.distributed.launcher.api import LaunchConfig

from rankwatch.contract import env as environment
from rankwatch.contract.interpreter import own_python
from rankwatch.contract.policy import Policy
from rankwatch_launcher import call
from rankwatch_launcher.coordination.rendezvous import BACKENDS
from rankwatch_launcher.coordination.store_file import STORE_TYPE, by_file
from rankwatch_launcher.job.launcher import Launcher
from rankwatch_launcher.options import Options
from rankwatch_launcher.outcome import FINISHED, Outcome

POLICY: Final = frozenset(setting.name for setting in fields(Policy)) - {"max_restarts"}
OPTIONS: Final = frozenset(option.name for option in fields(Options)) - {"policy", "shutdown_timeout"}


class NotFinished(RuntimeError):  # noqa: N818  # a stop that was asked for is no error
    """The job ended without all ranks having finished, and none failed here: it was stopped, preempted or given up."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.state}: {outcome.reason}")
        self.outcome = outcome
        """How it ended."""


class elastic_launch:  # noqa: N801  # torch's name
    """Runs a function, or a program, on the ranks of this node; takes torch's ``LaunchConfig``.

    Example::

        from rankwatch_launcher.api import elastic_launch
        from torch.distributed.launcher.api import LaunchConfig

        config = LaunchConfig(1, 1, nproc_per_node=8, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
        losses = elastic_launch(config, train, heartbeat_timeout=120.0)(1e-3)
    """

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str, **settings: Any) -> None:
        """Check the settings.

        Args:
            config: torch's; ``max_restarts`` is its 3 unless set, ``start_method`` is of no effect: ranks are spawned.
            entrypoint: a function that can be pickled, with its arguments; or a program.
            settings: of the launcher and its policy, by the names of their flags: ``monitor_url``, ``job_id``,
                ``heartbeat_timeout``, ``spares`` and so on.

        Raises:
            ValueError: there is no such setting, or its value is invalid.
        """
        if unknown := settings.keys() - POLICY - OPTIONS:
            raise ValueError(f"the launcher has no setting {', '.join(sorted(unknown))}")
        policy = {name: value for name, value in settings.items() if name in POLICY}
        Policy().changed(policy)
        given = {name: value for name, value in settings.items() if name in OPTIONS}
        given.setdefault("monitor_url", os.environ.get(environment.MONITOR_URL, ""))
        given.setdefault("token", os.environ.get(environment.TOKEN, ""))
        given.setdefault("job_id", os.environ.get(environment.JOB_ID, ""))
        given.setdefault("job_name", entrypoint.__name__ if callable(entrypoint) else Path(entrypoint).stem)
        self._options = Options(policy=policy | {"max_restarts": config.max_restarts}, **given)
        self._config, self._entrypoint = _settled(config), entrypoint
        self.outcome: Outcome | None = None
        """How the last launch ended."""

    def __call__(self, *arguments: Any) -> dict[int, Any]:
        """Run it, from the main thread; return what the ranks of this node returned; a program returns nothing.

        Raises:
            ChildFailedError: ranks of this node failed, and no restart was left.
            NotFinished: the job was stopped or preempted, or has failed elsewhere.
            ValueError: the function or an argument cannot be pickled.
        """
        with tempfile.TemporaryDirectory(prefix="rankwatch-call-") as name, _own_process_restored():
            folder = Path(name)
            command, rest = str(self._entrypoint), [str(each) for each in arguments]
            if callable(self._entrypoint):
                call.write_call(folder, self._entrypoint, arguments)
                command, *rest = own_python("-u", "-m", call.__name__, name)
            launcher = Launcher(self._options, replace(self._config, rdzv_timeout=-1))
            try:
                launcher.run(command, rest)
            finally:
                self.outcome = launcher.outcome
                if launcher.summary is not None:
                    launcher.summary.show()
            if launcher.outcome.state != FINISHED:
                raise NotFinished(launcher.outcome)
            attempt = launcher.outcome.attempt
            return call.returned(folder, attempt, call.ranks_with_results(folder, attempt))


def _settled(config: LaunchConfig) -> LaunchConfig:
    """The configuration with an id, and a rendezvous of Rankwatch's own, which a single node does not need."""
    if not config.run_id:
        config = replace(config, run_id=str(uuid4()), rdzv_timeout=-1)
    file = config.rdzv_backend == "c10d" and by_file(config.rdzv_configs)
    if config.rdzv_backend in BACKENDS and (config.rdzv_endpoint or config.max_nodes > 1) and not file:
        return config
    if config.max_nodes > 1:
        if file and config.rdzv_endpoint:
            return config
        raise ValueError(f"several nodes need rdzv_backend {' or '.join(BACKENDS)}, not {config.rdzv_backend!r}")
    configs = {name: value for name, value in config.rdzv_configs.items() if name != STORE_TYPE}
    alone: Mapping[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "rdzv_configs": configs}
    return replace(config, rdzv_timeout=-1, **alone)


@contextmanager
def _own_process_restored() -> Iterator[None]:
    """Context after which signal handlers and environment of the caller are as before: a launcher's own end with it."""
    variables = dict(os.environ)
    handlers = {
        number: signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
