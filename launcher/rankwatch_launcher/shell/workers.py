"""How torch's agent starts rank processes: from prewarmed workers where possible, else as fresh processes."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import IO, Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from rankwatch.contract.env import of_ranks
from rankwatch_launcher import torch_compat
from rankwatch_launcher.open_files import restore_limit
from rankwatch_launcher.prewarm.bootstrap import Bootstrap
from rankwatch_launcher.prewarm.pool import PrewarmPool


class RankHandler(SubprocessHandler):
    """torch's handle on one rank process, taken from the pool if it has a matching worker."""

    def __init__(
        self,
        pool: PrewarmPool | None,
        on_start: Callable[[int], None],
        bootstrap: Bootstrap,
        signals: str | None = None,
        stream: Callable[[str], IO[bytes] | None] = lambda _: None,
        **start: Any,
    ) -> None:
        self._pool, self._on_start, self._bootstrap, self._signals = pool, on_start, bootstrap, signals
        self._stream = stream
        super().__init__(**start)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        self._redirect()
        if self._signals is not None:
            env[torch_compat.SIGNALS] = self._signals
        env = self._bootstrap.environment(of_ranks(env))
        taken = self._take(args, env)
        process: subprocess.Popen[bytes] = taken if taken is not None else super()._popen(args, env)
        if taken is None:
            restore_limit(process.pid)
        self._on_start(process.pid)
        if self._pool is not None:
            self._pool.started(self.local_rank_id, process.pid)
        return process

    def _redirect(self) -> None:
        """Give the rank what stands for its files, if they are ours; both streams may go to one."""
        out, error = self._stdout, self._stderr
        self._stdout = self._in_place_of(out)
        if out is not None and error is not None and out.name == error.name:
            error.close()
            self._stderr = self._stdout
        else:
            self._stderr = self._in_place_of(error)

    def _in_place_of(self, file: Any) -> Any:
        if file is None or (stream := self._stream(file.name)) is None:
            return file
        file.close()
        # Behind what is there: a child may open and empty it.
        fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)
        return stream

    def _take(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes] | None:
        if self._pool is None:
            return None
        # Without a file, output goes where the launcher's own goes.
        stdout = 1 if self._stdout is None else self._stdout.fileno()
        stderr = 2 if self._stderr is None else self._stderr.fileno()
        return self._pool.take(self.local_rank_id, args, env, stdout, stderr)


@contextlib.contextmanager
def rank_handlers(
    pool: PrewarmPool | None,
    on_start: Callable[[int], None],
    bootstrap: Bootstrap | None = None,
    stream: Callable[[str], IO[bytes] | None] = lambda _: None,
) -> Iterator[None]:
    """Context in which torch starts ranks through :class:`RankHandler`.

    ``on_start`` is called with each pid as soon as the process runs, so that it is killed with a launcher that dies
    while it starts the others. ``stream``: what a rank is given in place of a file, by its path. torch leaves the
    launcher's signal handlers alone meanwhile: an exception halfway would lose the processes started so far.
    """
    signals = os.environ.get(torch_compat.SIGNALS)  # the ranks get the original value
    factory = functools.partial(RankHandler, pool, on_start, bootstrap or Bootstrap(), signals, stream)
    with torch_compat.without_signal_handlers(), torch_compat.subprocess_handler_factory(factory):
        yield
