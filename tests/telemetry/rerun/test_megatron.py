"""Megatron's names, and Megatron's own code pointed at this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch import rerun

NAMES = (
    "EXIT_CODE_FAILED_ON_RESULT_VALIDATION",
    "EXIT_CODE_RESUME_TO_DISAMBIGUATE",
    "RerunDataIterator",
    "RerunDiagnostic",
    "RerunErrorInjector",
    "RerunMode",
    "RerunState",
    "RerunStateMachine",
    "destroy_rerun_state_machine",
    "get_rerun_state_machine",
    "initialize_rerun_state_machine",
)
"""What Megatron-Core 0.16 and Megatron-Bridge import from ``megatron.core.rerun_state_machine``."""

# Save, resume and re-run through Megatron's distributed checkpoints, with names and calls as in its training loop.
PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")
from rankwatch.rerun import replace_megatron
replace_megatron()

import torch, torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.rerun_state_machine import (
    RerunDataIterator, RerunDiagnostic, RerunErrorInjector, RerunMode,
    destroy_rerun_state_machine, get_rerun_state_machine, initialize_rerun_state_machine,
)
assert param_and_grad_buffer.get_rerun_state_machine is get_rerun_state_machine
folder = sys.argv[1]
if not torch.cuda.is_available():
    # Megatron's writer of checkpoints asks for them, also where there is no GPU.
    torch.cuda.synchronize, torch.cuda.current_device = lambda *_: None, lambda: torch.device("cpu")
dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)

def begin(device):
    destroy_rerun_state_machine()
    initialize_rerun_state_machine(
        mode=RerunMode("validate_results"),
        error_injector=RerunErrorInjector(
            error_injection_rate=0, error_injection_type=RerunDiagnostic("persistent_error"), at=(0, 1)
        ),
        result_rejected_tracker_filename=f"{folder}/rejected", device=device,
    )
    return get_rerun_state_machine()

def train_step(data_iterator):
    machine = get_rerun_state_machine()
    while machine.should_run_forward_backward(data_iterator):
        loss = next(data_iterator).mean()
        machine.validate_result(
            result=loss, rejection_func=torch.isnan, message="found NaN in local forward loss calculation",
            tolerance=0.0, fatal=True,
        )
    return machine.should_checkpoint_and_exit()

machine, data = begin("board A"), [RerunDataIterator(iter([torch.ones(2) * n for n in range(9)]))]
assert train_step(data[0]) == (False, False, 0)
assert machine.state_dict(data_iterator=data, ckpt_format="torch_dist") is None
assert train_step(data[0]) == (True, True, 16)
state = machine.state_dict(data_iterator=data, ckpt_format="torch_dist")
os.mkdir(f"{folder}/iter_1")
dist_checkpointing.save({"rerun_state_machine": state}, f"{folder}/iter_1")

machine, data = begin("board B"), [RerunDataIterator(iter([torch.ones(2) * n for n in range(1, 9)]))]
common = dist_checkpointing.load_common_state_dict(f"{folder}/iter_1")["rerun_state_machine"]
assert machine.validate_state_dict(common)
template = {"rerun_state_machine": machine.state_dict(data_iterator=data, ckpt_format="torch_dist", force=True)}
loaded = dist_checkpointing.load(template, f"{folder}/iter_1")
machine.load_state_dict(loaded["rerun_state_machine"])
assert train_step(data[0]) == (False, True, 17)
assert "second_rerun_not_reproducible" in open(f"{folder}/rejected").read()
print("as Megatron's own", flush=True)
os._exit(0)  # gloo's threads may abort the interpreter's end
"""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    rerun.destroy_rerun_state_machine()
    yield
    rerun.destroy_rerun_state_machine()


def test_every_name_that_megatron_imports_is_there() -> None:
    assert [name for name in NAMES if not hasattr(rerun, name)] == []


def test_one_machine_a_process() -> None:
    assert rerun.get_rerun_state_machine().get_mode() is rerun.RerunMode.DISABLED, "made when first asked for"
    with pytest.raises(RuntimeError, match="the re-run state machine exists already"):
        rerun.initialize_rerun_state_machine(mode="validate_results")
    rerun.destroy_rerun_state_machine()
    rerun.initialize_rerun_state_machine(mode="validate_results")
    assert rerun.get_rerun_state_machine() is rerun.get_rerun_state_machine()


def test_too_late_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "megatron.core.rerun_state_machine", pytest)
    with pytest.raises(RuntimeError, match="call replace_megatron\\(\\) at the top"):
        rerun.replace_megatron()


@pytest.mark.long
def test_megatrons_code_and_checkpoints_work_with_it(tmp_path: Path) -> None:
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        pytest.skip("megatron-core is not installed")
    sources = [str(Path(__file__).parents[3] / "telemetry"), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Megatron leaves processes of its own behind, which would keep a pipe open: files, and a session to be ended.
    with (tmp_path / "said").open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"},
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
    try:
        code = process.wait(100)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    words = (tmp_path / "said").read_text()
    assert code == 0, words[-4000:]
    assert "as Megatron's own" in words
