"""P13, P13b, P13c: from a fault to the first new step, side by side with torchrun and nvidia-resiliency-ext.

    python benchmarks/recovery.py [--runs N] [--faults N] [--ranks 2,4] [--kinds kill,hang] [--only 'NAME;NAME']
                                  [--nvrx PATH/bin/ft_launcher] [--json FILE]

One toy training (gloo, steps of 20 ms, a checkpoint every 5 steps, three steps lost by each fault) runs under each
launcher as its users start it. Ranks that are left alone by a dead peer wait for it, as under NCCL.

kill   the last rank kills itself with SIGKILL
hang   the last rank stays in its step; the figures count from the step's deadline, 3 s after it was entered

The figures are seconds by the kernel's clock until all ranks have completed a step again (``p50``, ``min``, ``max``);
``launcher`` is the part until the last of the new ranks' processes began, ``start`` what the ranks then take to
import, meet and step (medians both). ``failed`` is the number of attempts that came to nothing on the way, ``lost``
that of jobs that did not come back within 45 s. ``evidence`` is the share of faults of which Rankwatch's monitor has
the stacks of every rank that could give one, taken before the restart; the other launchers take none. The rounds are
interleaved: each runs every launcher once.

nvidia-resiliency-ext needs an environment of its own, since it brings other versions of what Rankwatch uses:

    python3.11 -m venv PATH
    PATH/bin/pip install torch==2.13.0 nvidia-resiliency-ext==0.4.1
    PATH/bin/pip install pynvml nvidia-ml-py pyyaml defusedxml packaging psutil numpy

Without ``--nvrx`` its rows are left out; ``ft_launcher, 0.5 s`` looks for hangs every 0.5 s in place of every 5 s.
"""

from __future__ import annotations

import itertools
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import _recovery_run
import _table
from _recovery_run import Arm, LostError, Recovery


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    kind: str
    """Of fault: kill or hang."""
    ranks: int
    arm: Arm

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.ranks} ranks, {self.arm.name}"


def measure(row: Row, faults: int, folder: Path) -> tuple[list[Recovery], str]:
    """Run one job and strike it some times; return what was seen and, when it was lost, why."""
    seen: list[Recovery] = []
    try:
        with _recovery_run.job(row.arm, row.ranks, folder) as job:
            for _ in range(faults):
                seen.append(job.recover_from(row.kind))  # noqa: PERF401 - those before one that is lost count too
    except LostError as error:
        return seen, str(error)
    except TimeoutError as error:
        sys.exit(f"{row.name}: {error}\n{(folder / 'log').read_text(errors='replace')[-4000:]}")
    return seen, ""


def figures(seen: list[Recovery], lost: int) -> dict[str, float]:
    """The row of one launcher."""
    totals = [each.to_step for each in seen] or [float("nan")]
    clean = [each for each in seen if not each.failed]
    kept = [each.evidence for each in seen if each.evidence is not None]
    return {
        "n": len(seen),
        "p50": median(totals),
        "min": min(totals),
        "max": max(totals),
        "launcher": median([each.to_process for each in clean] or [float("nan")]),
        "start": median([each.to_step - each.to_process for each in clean] or [float("nan")]),
        "failed": sum(each.failed for each in seen),
        "lost": lost,
        "evidence": sum(kept) / len(kept) if kept else float("nan"),
    }


def meaningful(row: Row) -> bool:
    """Whether a launcher has something to show for a kind of fault."""
    if row.kind == "hang":
        return row.arm.limited
    return row.arm.name != _recovery_run.TUNED  # how often it looks for hangs plays no part in a kill


def main() -> None:
    """Run the benchmark."""
    asked = _table.arguments(
        __doc__,
        runs=(5, "jobs for each row"),
        faults=(2, "faults in each job"),
        ranks=("2,4", "numbers of ranks"),
        kinds=("kill,hang", "faults"),
        only=("", "names of launchers separated by ;, all when empty"),
        nvrx=("", "path of ft_launcher of nvidia-resiliency-ext"),
    )
    # Ended from outside it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    only = [name.strip() for name in asked.only.split(";") if name]
    arms = [arm for arm in _recovery_run.arms(asked.nvrx) if not only or arm.name in only]
    numbers = [int(ranks) for ranks in asked.ranks.split(",")]
    rows = [Row(kind, ranks, arm) for kind in asked.kinds.split(",") for ranks in numbers for arm in arms]
    rows = [row for row in rows if meaningful(row)]
    seen: dict[str, list[Recovery]] = {row.name: [] for row in rows}
    lost: dict[str, list[str]] = {row.name: [] for row in rows}
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        for number, (place, row) in itertools.product(range(asked.runs), enumerate(rows)):
            found, why = measure(row, asked.faults, Path(name) / f"{number}-{place}")
            seen[row.name].extend(found)
            lost[row.name].extend([why] if why else [])
            times = ", ".join(f"{each.to_step:.2f}" for each in found)
            print(f"{number + 1}/{asked.runs} {row.name}: {times} {why}", file=sys.stderr, flush=True)
    rows_seen = {name: figures(seen[name], len(lost[name])) for name in seen}
    samples = {name: [asdict(each) for each in seen[name]] for name in seen}
    _table.report(rows_seen, "fault → first new step, s", asked.json, samples=samples, lost=lost)


if __name__ == "__main__":
    main()
