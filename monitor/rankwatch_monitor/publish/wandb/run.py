"""One run of Weights & Biases: opened or resumed for a job, written from its snapshots, ended. May block or raise.

The run's id is derived from the job's, so restarted jobs and monitors continue the same run. The step of a row is the
job's age in units of 10 s: it only grows, also over several offline files, as ``wandb sync`` needs to join them (W&B
drops rows whose step does not grow). Charts are drawn over ``rankwatch/iteration``. The last step, and the ids of sent
alerts, are kept in a file beside those of the runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankwatch.contract.files import check_own, check_unshared, replace_file
from rankwatch_monitor.publish.snapshot import Snapshot
from rankwatch_monitor.publish.wandb import rows as rows

if TYPE_CHECKING:
    import wandb

LONGEST_ID: Final = 64
LONGEST_NAME: Final = 128
INIT_TIMEOUT: Final = 30.0
FINISH_TIMEOUT: Final = 8.0
"""Seconds for uploading the rest when a run ends; what is left stays in its file, for ``wandb sync``."""
FLUSH_INTERVAL: Final = 5.0
"""Seconds until a row is in the file, if wandb supports it; so much is lost when the monitor is killed."""
REMEMBERED: Final = 1000
"""Ids of sent alerts that are kept; a snapshot holds fewer."""
STEP_SECONDS: Final = 10.0
"""Seconds of a job's age per step; rows are never closer."""
_READ_BY_WANDB: Final = ("wandb/settings", ".wandb/settings", "config-defaults.yaml")
"""Files of the working directory. The first two may name the server that is sent the key."""
_KEPT_OUT: Final[dict[str, Any]] = {
    # The command line may hold a token; the machine's hardware and packages are not to be published.
    **dict.fromkeys(("x_disable_meta", "x_disable_machine_info", "x_disable_stats"), True),
    **dict.fromkeys(("disable_git", "disable_code"), True),
    "x_save_requirements": False,
    "console": "off",
}
_WHERE_KNOWN: Final[dict[str, Any]] = {
    "silent": True,
    "init_timeout": INIT_TIMEOUT,
    "finish_timeout": FINISH_TIMEOUT,
    "x_transaction_log_flush_interval": FLUSH_INTERVAL,
}
"""Settings of which not every release of wandb has each."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where runs are published."""

    project: str
    entity: str | None = None
    mode: str = "online"
    folder: str | None = None
    """Files are written below it; None: ``WANDB_DIR``, else the working directory."""
    series: str = rows.CURATED
    page: str | None = None
    """Address of the monitor's page, for links."""


def run_id(job_id: str) -> str:
    """The id of a job's run: its own where W&B takes it, else a readable form with a hash, at most 64 characters."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "-", job_id)
    if clean == job_id and 0 < len(job_id) <= LONGEST_ID:
        return job_id
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:10]
    return f"{clean[: LONGEST_ID - len(digest) - 1]}-{digest}"


def begin(where: Where, snapshot: Snapshot, since: float) -> JobRun:
    """Open or resume the run of a job. What ended before ``since`` (unix seconds) causes no alert.

    Raises:
        PermissionError: another user may have written a file of settings that W&B reads, or may do so at any time.
        ValueError: this release of wandb may publish the command line.
    """
    _check_settings()
    import wandb

    _check_settings()  # the import takes seconds
    known = wandb.Settings.model_fields
    if missing := _KEPT_OUT.keys() - known.keys():
        words = f"wandb {wandb.__version__} lacks {', '.join(sorted(missing))}, so it may publish the command line"
        raise ValueError(f"{words}, with its tokens: install another release")
    run = wandb.init(
        project=where.project,
        entity=where.entity,
        mode="offline" if where.mode == "offline" else "online",
        dir=where.folder,
        id=run_id(snapshot.job_id),
        name=snapshot.name[:LONGEST_NAME],
        group=snapshot.job_id[:LONGEST_NAME],
        job_type="rankwatch",
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(**_KEPT_OUT, **{name: value for name, value in _WHERE_KNOWN.items() if name in known}),
    )
    run.define_metric(rows.ITERATION)
    run.define_metric(f"{rows.PREFIX}*", step_metric=rows.ITERATION, step_sync=False)
    return JobRun(run, since, where)


def _check_settings() -> None:
    # One that is there is named before one that others could add.
    for path in sorted(map(Path, _READ_BY_WANDB), key=os.path.lexists, reverse=True):
        try:
            check_own(path)
            if os.path.lexists(path) and path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError(f"{path.absolute()} can be written to by other users (chmod go-w)")
            for folder in filter(os.path.lexists, dict.fromkeys((path.parent.absolute(), Path.cwd()))):
                check_unshared(folder)
        except OSError as error:
            words = f"W&B would read {path.absolute()}, and so may send its key elsewhere: {error}"
            raise PermissionError(f"{words}; mend that, or start the monitor in a folder of its user alone") from None


class JobRun:
    """One open run, and what was written to it."""

    def __init__(self, run: wandb.Run, since: float, where: Where) -> None:
        self._run, self._where = run, where
        self._since = since
        self._state = _RunState(Path(run.settings.wandb_dir) / f"rankwatch-{run.id}.json")
        self._state.step = max(self._state.step, run.step - 1)
        self._config: dict[str, Any] = {}
        self._tables: dict[str, object] = {}
        self._reported_at = -float("inf")

    def write(self, snapshot: Snapshot) -> None:
        """Log a row, the tables that changed, and new alerts."""
        if snapshot.name[:LONGEST_NAME] != self._run.name:
            self._run.name = snapshot.name[:LONGEST_NAME]  # ranks may use another name than the launcher
        if (config := rows.config(snapshot)) != self._config:
            known: Any = self._run.config  # its methods carry no types
            known.update(config, allow_val_change=True)
            self._config = config
        state = self._state
        state.step = max(state.step + 1, int((snapshot.at - snapshot.created_at) / STEP_SECONDS))
        values = rows.row(snapshot, self._where.series) | self._changed_tables(snapshot)
        self._run.log(values, step=state.step, commit=True)
        summary: Any = self._run.summary
        summary.update(rows.summary(snapshot, self._where.page))
        for alert in rows.alerts(snapshot, self._since, self._where.page):
            if alert.id not in state.sent:
                if alert.current:
                    self._run.alert(alert.title, alert.text, level=alert.level, wait_duration=1)
                state.sent[alert.id] = None
        state.save()

    def finish(self, *, failed: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(failed))

    def _changed_tables(self, snapshot: Snapshot) -> dict[str, Any]:
        import wandb

        # Scores change with every window; their table is logged once per report interval, or when stragglers change.
        due = snapshot.at - self._reported_at >= snapshot.report_interval
        made = {}
        for name, table in rows.tables(snapshot).items():
            same = self._tables.get(name) == table.key
            if table.data and not (same and (not due or not table.varies)):
                self._tables[name] = table.key
                made[name] = wandb.Table(columns=list(table.columns), data=table.data, allow_mixed_types=True)
                # A table that is bound when it is logged has no artifact, whose copies would stay in artifacts/staging.
                table_of_run: Any = made[name]  # its methods carry no types
                table_of_run.bind_to_run(self._run, name, self._state.step)
        if due:
            self._reported_at = snapshot.at
        return made


class _RunState:
    """The persistent state of a run: a small file beside W&B's, replaced after each row.

    If it cannot be written, the state lasts as long as this process.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step = -1
        """Of the last row."""
        self.sent: dict[str, None] = {}
        """Ids of sent alerts, the oldest first."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(file.read_text())
            self.step, self.sent = int(known["step"]), dict.fromkeys(map(str, known["told"]))

    def save(self) -> None:
        """Write the file."""
        with contextlib.suppress(OSError):
            replace_file(self._file, json.dumps({"step": self.step, "told": list(self.sent)[-REMEMBERED:]}))
