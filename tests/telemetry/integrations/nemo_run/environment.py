"""The real NeMo-Run in an environment of its own: it wants other versions of httpx and urllib3 than ours.

The environment sees the packages of the one that the tests run in (torch, Rankwatch itself) behind its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path
from typing import Any

from support.processes import without

OWN_PYTHON = "RANKWATCH_TEST_NEMO_PYTHON"
"""A variable that names the Python of such an environment, where one is kept: making it takes a minute."""
PACKAGES = ("nemo-run==0.11.1", "leptonai==0.27.3")
"""A later leptonai lacks what this NeMo-Run imports of it."""
FOREIGN = (
    "RANKWATCH_",
    "OTEL_",
    "TORCHELASTIC_",
    "PET_",
    "SLURM_",
    "SBATCH_",
    "RANK",
    "WORLD_SIZE",
    "MASTER_",
    "PYTHON",
)


PRELUDE = """
import json, sys
from pathlib import Path
import nemo_run as run
from rankwatch.integrations.nemo_run import *
from rankwatch.integrations.nemo_run import RankwatchLauncher

def slurm(**given):
    tunnel = run.LocalTunnel(job_dir="")
    settings = dict(account="test", nodes=2, ntasks_per_node=8, tunnel=tunnel, packager=run.Packager())
    return run.SlurmExecutor(**(settings | given))

def script_of(executor, task, plugins):
    with run.Experiment("pretrain", executor=executor) as experiment:
        experiment.add(task, plugins=plugins, name="pretrain")
        experiment.dryrun(log=False, delete_exp_dir=False)
    (file,) = Path(experiment._exp_dir).glob("*_sbatch.sh")
    return file.read_text()

def answer(value):
    Path("answer").write_text(json.dumps(value))

def refusal(*plugins, executor=None, task=None):
    task = task or run.Script("train.py", entrypoint="python")
    executor = executor or run.LocalExecutor()
    try:
        for plugin in plugins:
            plugin.setup(task, executor)
    except ValueError as error:
        return str(error)

train = run.Script("train.py", entrypoint="python", args=["--name", "two words"])
"""
"""What every program of these tests begins with."""

RUN_ALL = """
import os, runpy, sys, traceback
from pathlib import Path

home = Path.cwd()
sys.path.insert(0, str(home))
for program in sorted(home.glob("*/program.py")):
    os.chdir(program.parent)
    try:
        runpy.run_path("program.py", run_name="__main__")
    except Exception:
        Path("failed").write_text(traceback.format_exc())
"""
"""Runs the programs in the folders below; each of them imports its prelude again."""

RECIPE = """
import os
from dataclasses import dataclass, field
from pathlib import Path

@dataclass
class Log:
    log_dir: str = "logs"

class Trainer:
    def __init__(self, callbacks: list | None = None, steps: int = 3):
        self.callbacks, self.steps = callbacks, steps

def pretrain(trainer: Trainer, log: Log, folder: str):
    names = " ".join(type(callback).__name__ for callback in trainer.callbacks)
    place = Path(folder) / f"rank-{os.environ['RANK']}-of-{os.environ['WORLD_SIZE']}"
    place.write_text(f"{names}; attempt {os.environ['RANKWATCH_ATTEMPT']}")
"""
"""A module with a recipe, as NeMo has them: the callbacks are the trainer's."""


class Nemo:
    """Runs programs in that environment."""

    def __init__(self, python: Path) -> None:
        self.python = python

    def environment(self, home: Path) -> dict[str, str]:
        """The environment variables of a program that keeps its experiments below ``home``."""
        inherited = without(FOREIGN)
        path = f"{self.python.parent}:{inherited.get('PATH', '')}"
        return inherited | {"PATH": path, "NEMORUN_HOME": str(home / "nemo-run"), "COLUMNS": "1000", "NO_COLOR": "1"}

    def run(self, program: str, folder: Path) -> str:
        """Run a program to its end and return what it printed; it must not fail."""
        done = subprocess.run(
            [self.python, "-c", textwrap.dedent(program)],
            env=self.environment(folder),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def answers(self, programs: dict[str, str], folder: Path) -> dict[str, Any]:
        """Run programs, each in a folder of its own, and return by name what each gave to ``answer``, or its traceback.

        One interpreter runs all of them: to import NeMo-Run takes seconds.
        """
        (folder / "recipe.py").write_text(RECIPE)
        for name, program in programs.items():
            (folder / name).mkdir()
            (folder / name / "program.py").write_text(PRELUDE + program)
        self.run(RUN_ALL, folder)
        return {
            name: json.loads((folder / name / "answer").read_text())
            if (folder / name / "answer").exists()
            else AssertionError((folder / name / "failed").read_text())
            for name in programs
        }


def make_environment(folder: Path) -> str:
    """Make the environment, and return why that could not be; nothing when it is there."""
    venv.create(folder)  # our own pip serves it: to give it one takes longer than making it
    words = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", *PACKAGES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        return f"needs {' and '.join(PACKAGES)}, which pip cannot install: {done.stderr[-300:]}"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "zz_ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return ""
