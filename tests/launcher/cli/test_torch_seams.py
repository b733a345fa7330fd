"""``rankwatch run`` on a torch that lacks what the launcher needs: torchrun, with one warning."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support import forked

SOURCES = [Path(__file__).parents[3] / name for name in ("telemetry", "monitor", "launcher")]
RUN = "from rankwatch_launcher.cli.main import run; sys.exit(run(sys.argv[1:]))"
METHOD = "from rankwatch_launcher import torch_compat; torch_compat.PRIVATE_METHODS['_not_there'] = ''"
IMPORT = "import torch.distributed.run; del sys.modules['torch.distributed.elastic.multiprocessing.subprocess_handler']"
IMPORT += ".SubprocessHandler"
UNKNOWN = "import torch; torch.__version__ = '2.99.0'"
CRASH_ONCE = """
import os, sys
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
print("ours" if "RANKWATCH_ATTEMPT" in os.environ else "torchrun's", flush=True)
os._exit(3 if first else 0)
"""


def run(tmp_path: Path, before: str) -> str:
    script = tmp_path / "train.py"
    script.write_text(CRASH_ONCE)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWATCH_", "PET_", "SLURM_", "TORCHELASTIC"))}
    arguments = ("--monitor", "http://127.0.0.1:9", "--max-restarts", "1", "--nproc-per-node", "1", str(script))
    done = forked.run(
        [sys.executable, "-c", f"import sys; {before}; {RUN}", *arguments],
        env={**clean, "PYTHONPATH": os.pathsep.join(map(str, SOURCES)), "XDG_STATE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("before", "name"), [(METHOD, "_not_there"), (IMPORT, "SubprocessHandler")])
def test_without_a_name_it_is_torchrun_with_one_warning(tmp_path: Path, before: str, name: str) -> None:
    output = run(tmp_path, before)
    assert output.count("running plain torchrun") == 1
    assert output.count(name) == 1
    assert output.count("torchrun's") == 2, "torchrun restarted it"


def test_an_unknown_version_runs_with_a_warning(tmp_path: Path) -> None:
    output = run(tmp_path, UNKNOWN)
    assert output.count("torch 2.99.0 is untested") == 1
    assert output.count("ours") == 2
