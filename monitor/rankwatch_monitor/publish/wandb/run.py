"""One run of Weights & Biases: begun or resumed for a job, told its snapshots, ended. All of it may block or raise.

A run's id follows from the job's, so that a job that was restarted, or whose monitor was, goes on in the same run. A
row's step is the job's age in units of 10 s: it only grows, also over several offline files, which is what lets
``wandb sync`` join them (W&B drops a row whose step is not larger than the one before). Charts are drawn over
``rankwatch/iteration``. The last step, and which incidents were alerted, are kept beside the files of the runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankwatch.contract.files import replace_file
from rankwatch_monitor.publish.snapshot import Snapshot
from rankwatch_monitor.publish.wandb import rows as rows

if TYPE_CHECKING:
    import wandb

LONGEST_ID: Final = 64
LONGEST_NAME: Final = 128
INIT_TIMEOUT: Final = 30.0
FINISH_TIMEOUT: Final = 8.0
"""Seconds for uploading the rest when a run ends; what is left lies in its file, for ``wandb sync``."""
FLUSH_INTERVAL: Final = 5.0
"""Seconds until a row is in the file, where wandb can be told; only that much is lost when the monitor is killed."""
REMEMBERED: Final = 1000
"""Alerts that the next monitor knows of; a snapshot holds fewer."""
STEP_SECONDS: Final = 10.0
"""Seconds of a job's life that make one step; rows come no closer than that."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where runs are published."""

    project: str
    entity: str | None = None
    mode: str = "online"
    folder: str | None = None
    """Files are written below it; None: ``WANDB_DIR``, else the working directory."""


def run_id(job_id: str) -> str:
    """The id of a job's run: its own where W&B takes it, else a readable form with a hash, at most 64 characters."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "-", job_id)
    if clean == job_id and 0 < len(job_id) <= LONGEST_ID:
        return job_id
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:10]
    return f"{clean[: LONGEST_ID - len(digest) - 1]}-{digest}"


def begin(where: Where, snapshot: Snapshot, since: float) -> JobRun:
    """Begin the run of a job, or resume it; ``since`` (unix seconds): what ended before is not alerted."""
    import wandb

    wanted: dict[str, Any] = {
        # The command line may hold a token, and what this machine has installed is nobody's business.
        **dict.fromkeys(("x_disable_meta", "x_disable_machine_info", "x_disable_stats"), True),
        **dict.fromkeys(("disable_git", "disable_code", "silent"), True),
        "x_save_requirements": False,
        "console": "off",
        "init_timeout": INIT_TIMEOUT,
        "finish_timeout": FINISH_TIMEOUT,
        "x_transaction_log_flush_interval": FLUSH_INTERVAL,
    }
    known = wandb.Settings.model_fields
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
        settings=wandb.Settings(**{name: value for name, value in wanted.items() if name in known}),
    )
    run.define_metric(rows.ITERATION)
    run.define_metric(f"{rows.PREFIX}*", step_metric=rows.ITERATION, step_sync=False)
    return JobRun(run, since)


class JobRun:
    """One open run, and what it was told already."""

    def __init__(self, run: wandb.Run, since: float) -> None:
        self._run = run
        self._since = since
        self._memory = _Memory(Path(run.settings.wandb_dir) / f"rankwatch-{run.id}.json")
        self._memory.step = max(self._memory.step, run.step - 1)
        self._config: dict[str, Any] = {}
        self._tables: dict[str, object] = {}
        self._reported_at = -float("inf")

    def write(self, snapshot: Snapshot) -> None:
        """Log a row, the tables that changed, and the alerts that nobody has had yet."""
        if snapshot.name[:LONGEST_NAME] != self._run.name:
            self._run.name = snapshot.name[:LONGEST_NAME]  # ranks may call the job otherwise than its launcher
        if (config := rows.config(snapshot)) != self._config:
            known: Any = self._run.config  # its methods carry no types
            known.update(config, allow_val_change=True)
            self._config = config
        memory = self._memory
        memory.step = max(memory.step + 1, int((snapshot.at - snapshot.created_at) / STEP_SECONDS))
        self._run.log(rows.row(snapshot) | self._changed_tables(snapshot), step=memory.step, commit=True)
        summary: Any = self._run.summary
        summary.update(rows.summary(snapshot))
        for alert in rows.alerts(snapshot, self._since):
            if alert.id not in memory.told:
                if alert.told:
                    self._run.alert(alert.title, alert.text, level=alert.level, wait_duration=1)
                memory.told[alert.id] = None
        memory.save()

    def finish(self, *, failed: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(failed))

    def _changed_tables(self, snapshot: Snapshot) -> dict[str, Any]:
        import wandb

        # Scores differ in every window; a table of them once a report is enough, unless other ranks are slow.
        due = snapshot.at - self._reported_at >= snapshot.report_interval
        made = {}
        for name, table in rows.tables(snapshot).items():
            same = self._tables.get(name) == table.key
            if table.data and not (same and (not due or not table.varies)):
                self._tables[name] = table.key
                made[name] = wandb.Table(columns=list(table.columns), data=table.data, allow_mixed_types=True)
        if due:
            self._reported_at = snapshot.at
        return made


class _Memory:
    """What the next monitor has to know of a run: a small file beside W&B's, replaced after each row.

    Where it cannot be written, its contents last as long as this process.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step = -1
        """Of the last row."""
        self.told: dict[str, None] = {}
        """Ids of what was alerted, the oldest first."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(file.read_text())
            self.step, self.told = int(known["step"]), dict.fromkeys(map(str, known["told"]))

    def save(self) -> None:
        """Write it down."""
        with contextlib.suppress(OSError):
            replace_file(self._file, json.dumps({"step": self.step, "told": list(self.told)[-REMEMBERED:]}))
