"""Starts a rank's process both ways, fresh and from a standby, by the handles that torch's agent uses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from launcher.conftest import wait_for
from rankwatch_launcher.prewarm.bootstrap import Bootstrap
from rankwatch_launcher.prewarm.pool import PrewarmPool, PrewarmSettings
from rankwatch_launcher.shell.workers import RankHandler

AN_ATTEMPT = {
    "RANK": "1",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANKWATCH_ATTEMPT": "1",
}
SECONDS = 150.0
"""Torch takes a second or two to be imported, and much longer on a machine that has other things to do."""
THE_NEXT = {**AN_ATTEMPT, "MASTER_PORT": "2", "TORCHELASTIC_RESTART_COUNT": "1", "RANKWATCH_ATTEMPT": "2"}


@dataclass
class Ended:
    code: int
    out: str
    err: str


@dataclass
class Starts:
    """One folder, in which scripts run; ``base`` is imported ahead, instead of torch where that does not matter."""

    folder: Path
    base: tuple[str, ...] = ("json",)
    pools: list[PrewarmPool] = field(default_factory=list)
    handlers: list[SubprocessHandler] = field(default_factory=list)

    def pool(self, **options: object) -> PrewarmPool:
        settings = PrewarmSettings(**options)  # type: ignore[arg-type]
        self.pools.append(PrewarmPool(settings, dict, base=self.base, settle_seconds=0.0))
        return self.pools[-1]

    def wish(self, pool: PrewarmPool, args: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Notify the pool of a rank that was started, without one."""
        argv = (sys.executable, "-u", *args)
        assert pool.take(0, argv, {**os.environ, **AN_ATTEMPT, **(env or {})}, 1, 2) is None

    def ready(self, pool: PrewarmPool, args: Sequence[str], env: Mapping[str, str] | None = None) -> PrewarmPool:
        """Tick until an interpreter has imported everything, or until the pool is off."""
        self.wish(pool, args, env)
        modules = set(self.base)

        def step() -> bool:
            pool.tick()
            return bool(pool.disabled) or any(set(p.imported) == modules and not p.busy for p in pool._workers.values())

        wait_for(step, SECONDS)
        return pool

    def fresh(self, args: Sequence[str], env: Mapping[str, str] | None = None, name: str = "fresh") -> Ended:
        return self._end(SubprocessHandler, args, env, name)

    def warm(self, args: Sequence[str], env: Mapping[str, str] | None = None, name: str = "warm") -> Ended:
        """Start the rank from a standby; fails where it was a fresh process after all."""
        return self.take(self.ready(self.pool(), args, env), args, env, name)

    def take(
        self, pool: PrewarmPool, args: Sequence[str], env: Mapping[str, str] | None = None, name: str = "warm"
    ) -> Ended:
        """Start the rank from this pool, and from nowhere else."""
        assert not pool.disabled
        (parked,) = pool._workers.values()

        def handler(**start: object) -> SubprocessHandler:
            return RankHandler(pool, lambda _: None, Bootstrap(), **start)

        ended = self._end(handler, args, env, name)
        assert self.handlers[-1].proc.pid == parked.process.pid, pool._logged
        return ended

    def _end(
        self, make: Callable[..., SubprocessHandler], args: Sequence[str], env: Mapping[str, str] | None, name: str
    ) -> Ended:
        outputs = [self.folder / f"{name}.out", self.folder / f"{name}.err"]
        handler = make(
            entrypoint=sys.executable,
            args=("-u", *args),
            env={**THE_NEXT, **(env or {})},
            stdout=str(outputs[0]),
            stderr=str(outputs[1]),
            local_rank_id=0,
            numa_options=None,
        )
        self.handlers.append(handler)
        try:
            code = handler.proc.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the script does not end; stderr: {outputs[1].read_text()}") from None
        return Ended(code, *(path.read_text() for path in outputs))

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
        for handler in self.handlers:
            handler.proc.kill()
            handler.proc.wait()
            for stream in (handler._stdout, handler._stderr):
                if stream is not None:
                    stream.close()
