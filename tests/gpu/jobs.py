"""Parts of the GPU kit that run a training job under the launcher, with a monitor beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu.devices import smi
from gpu.part import Context, Figures, part, require

ROOT = Path(__file__).resolve().parents[2]
RANK = str(Path(__file__).with_name("rank.py"))
PLAIN = str(Path(__file__).with_name("plain.py"))
COLLECTIVES = str(Path(__file__).with_name("collectives.py"))
SAMPLED = {"RANKWATCH_PROFILING_INTERVAL": "16", "RANKWATCH_REPORT_INTERVAL": "5", "RANKWATCH_KERNEL_TIMINGS": "cupti"}
"""A profiled step in 16, a report each 5 s."""
LIMIT = 5
"""Seconds a step may take."""
NO_JOBS = "the command was checked; --jobs also runs the job on the CPU"


def command(context: Context, *flags: str, ranks: int = 1, script: Sequence[str] = (), backend: str = "") -> list[str]:
    """Arguments of Python for a job; the launcher's own parser has accepted them."""
    from rankwatch_launcher.cli import main

    own = list(script)
    if not own:
        backend = backend or ("nccl" if context.cuda and ranks == 1 else "gloo")
        own = [RANK, "--device", context.device, "--backend", backend]
    elif own[0].startswith("--"):
        own = [RANK, "--device", context.device, "--backend", backend or "gloo", *own]
    words = ["--standalone", "--nproc-per-node", str(ranks), "--section-timeout", f"step={LIMIT}", *flags, *own]
    main.build_parser().parse_args(words)
    return words


@contextmanager
def job(context: Context, words: Sequence[str], **variables: str) -> Iterator[Any]:
    """The job, running; the monitor and everything that it started end with the block."""
    from e2e.training import Training
    from support.monitor_process import running_monitor

    with running_monitor(context.folder / "monitor") as monitor:
        training = Training(context.folder, "gpu-kit")
        training.follow(monitor.url)
        try:
            training.start(
                ["-m", "rankwatch", "run", "--monitor", monitor.url, "--job-id", "gpu-kit", *words], **variables
            )
            yield training
        finally:
            training.close()


def recovered(context: Context, words: Sequence[str], seconds: float = 75.0) -> Figures:
    """Run a job whose one fault ends in a restart; what was found and how long it took."""
    with job(context, words) as training:
        (launcher,) = training.launchers
        began = time.monotonic()
        while launcher.process.poll() is None and time.monotonic() - began < seconds:
            time.sleep(0.2)
        printed = launcher.printed()
        assert launcher.process.returncode == 0, printed[-3000:]
        summary = training.summary()
        assert (summary["state"], summary["restarts"]) == ("finished", 1), (summary, printed[-3000:])
        incident = training.incident()
    timeline = incident["timeline"]
    stacks = {
        group["method"]: [frame["function"] for frame in group["frames"]][:8] for group in incident["stack_groups"]
    }
    return {
        "kind": incident["kind"],
        "reason": incident["reason"],
        "culprits": [culprit["rank"] for culprit in incident["culprits"]],
        "detected after, s": timeline["detected"] - timeline["since"] if timeline.get("since") else None,
        "stacks": stacks,
        "stack errors": incident["stack_errors"],
        "recovered after, s": time.monotonic() - began,
        "launcher": re.findall(r"restarting all ranks[^\n]*|watchdog[^\n]*", printed)[:4],
    }


def injected(context: Context, fault: str, stand_in: str) -> Figures:
    """A fault of ``--inject``; ``stand_in`` on the CPU."""
    from rankwatch.faults import inject

    for kind in (fault, stand_in):
        inject.parse(f"rank=0,step=30,kind={kind}")
    words = command(context, "--inject", f"rank=0,step=30,kind={fault if context.cuda else stand_in}")
    return recovered(context, words) if context.cuda or context.jobs else {"dry": NO_JOBS}


def own_fault(context: Context, fault: str) -> Figures:
    """A fault of ``rank.py``."""
    words = command(context, script=["--break-by", fault], backend="nccl" if context.cuda else "gloo")
    return recovered(context, words) if context.cuda or context.jobs else {"dry": NO_JOBS}


@part(
    "hang-in-kernel",
    limit=90,
    proves="a rank in a kernel that does not end is found, named, its stack taken, restarted; NCCL's watchdog beside"
    " our verdict",
)
def hang_in_kernel(context: Context) -> Figures:
    found = injected(context, "gpu_sleep", "hang")
    assert "dry" in found or found["culprits"] == [0], found
    return found


@part(
    "hang-in-synchronize",
    limit=90,
    proves="a rank in cudaStreamSynchronize is found, named, its stack taken, restarted",
)
def hang_in_synchronize(context: Context) -> Figures:
    found = own_fault(context, "synchronize")
    assert "dry" in found or found["culprits"] == [0], found
    return found


@part(
    "cuda-error",
    limit=60,
    proves="a device-side assertion ends the rank, is in the incident's words, and the job restarts",
)
def cuda_error(context: Context) -> Figures:
    found = injected(context, "gpu_error", "exception")
    assert not context.cuda or "device-side assert triggered" in found["reason"], found
    return found


@part("out-of-memory", limit=60, proves="a rank out of device memory ends with that reason, and the job restarts")
def out_of_memory(context: Context) -> Figures:
    found = own_fault(context, "out-of-memory")
    assert not context.cuda or "OutOfMemoryError" in found["reason"], found
    return found


@part(
    "illegal-access",
    limit=60,
    proves="an illegal access of device memory ends the rank with that reason, and the job restarts",
)
def illegal_access(context: Context) -> Figures:
    found = own_fault(context, "illegal-access")
    assert not context.cuda or "illegal memory access" in found["reason"], found
    return found


@part(
    "shared-device",
    limit=90,
    proves="two ranks share the GPU over gloo with CUDA tensors; the hung one is named, not the other",
)
def shared_device(context: Context) -> Figures:
    words = command(context, ranks=2, script=["--break-by", "synchronize"])
    if not (context.cuda or context.jobs):
        return {"dry": NO_JOBS}
    found = recovered(context, words)
    assert found["culprits"] == [1], found
    return found


@part(
    "collectives",
    limit=90,
    proves="NCCL's kernels get the process group, operation and size of the flight recorder's entries (with two GPUs or"
    " more; with one, that the recorder's entries are read), with and without TORCH_NCCL_ENABLE_TIMING",
)
def collectives(context: Context) -> Figures:
    ranks = min(4, len(smi("index"))) if context.cuda else 2
    words = command(context, ranks=ranks, script=[COLLECTIVES, "--device", context.device])
    if not (context.cuda or context.jobs):
        return {"dry": NO_JOBS}
    figures: Figures = {}
    for timed in ("0", "1") if context.cuda else ("0",):
        done = subprocess.run(
            [sys.executable, "-m", "rankwatch", "run", "--no-monitor", *words],
            env=os.environ | {"TORCH_NCCL_ENABLE_TIMING": timed},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        found = re.search(r"collectives: (\{.*\})", done.stdout)
        assert found is not None, done.stdout + done.stderr
        figures[f"timing {timed}"] = measured = json.loads(found[1])
        assert measured["recorded"] >= 12, measured
        if ranks > 1:
            calls = {name.split()[0]: 0 for name in measured["operations"]}
            for name, each in measured["operations"].items():
                calls[name.split()[0]] += each["calls"]
                assert each["largest"] in (4 << 20, 4 * ranks << 20), measured
            assert calls == {"all_reduce": 5, "all_gather": 1}, measured
    return figures


@part("standby", limit=90, proves="--standby makes no CUDA context before its time, and memory returns after a kill")
def standby(context: Context) -> Figures:
    # The kill comes after some 12 s, when the prewarmed worker is ready.
    words = command(context, "--standby", "--inject", "rank=0,step=500,kind=kill", script=["--steps", "540"])
    if not (context.cuda or context.jobs):
        return {"dry": NO_JOBS}
    before = int(smi("memory.used")[0][0]) if context.cuda else 0
    holders, largest = 0, 0
    with job(context, words) as training:
        (launcher,) = training.launchers
        ended = time.monotonic() + 75
        while launcher.process.poll() is None and time.monotonic() < ended:
            if context.cuda:
                # In a container the driver may hide pids: then only the number of processes is left to compare.
                holders = max(holders, len(smi("pid,used_memory", "compute-apps")))
                largest = max(largest, int(smi("memory.used")[0][0]))
            time.sleep(0.5)
        assert launcher.process.returncode == 0, launcher.printed()[-3000:]
        warm = launcher.printed().count("starts from a prewarmed worker")
        assert warm == 1, launcher.printed()[-3000:]
    figures: Figures = {"ranks from prewarmed workers": warm, "processes with a context, at most": holders}
    if context.cuda:
        time.sleep(2)
        after = int(smi("memory.used")[0][0])
        figures |= {"MiB before": before, "MiB at most": largest, "MiB after": after}
        assert holders <= 1, figures
        assert after <= before + 64, figures
    return figures


@part("in-process", limit=60, proves="a restart within the process keeps the CUDA context and trains on")
def in_process(context: Context) -> Figures:
    words = command(context, script=["--in-process"], ranks=2)
    if not (context.cuda or context.jobs):
        return {"dry": NO_JOBS}
    with job(context, words) as training:
        (launcher,) = training.launchers
        code, printed = launcher.wait(), launcher.printed()
    lines = re.findall(r"in-process: iteration \d+, sum [\d.]+, \d+ process", printed)
    assert (code, lines) == (0, ["in-process: iteration 1, sum 16, 1 process"] * 2), printed[-3000:]
    return {"lines": lines}


@part(
    "example", limit=100, proves="the example with --preset gpu trains on the device, hangs once, is found and finishes"
)
def example(context: Context) -> Figures:
    file = str(ROOT / "examples" / "train_gpt.py")
    own = [file, "--preset", "gpu" if context.cuda else "cpu", "--steps", "80", "--checkpoint-every", "20"]
    own += ["--eval-every", "1000", "--checkpoint-dir", str(context.folder / "checkpoints")]
    fault = f"rank=0,step=52,kind={'gpu_sleep' if context.cuda else 'hang'}"
    words = command(context, "--inject", fault, script=own)
    return recovered(context, words) if context.cuda or context.jobs else {"dry": NO_JOBS}


@part(
    "telemetry",
    limit=90,
    proves="the kernels of a job by CUPTI and the readings of its device reach the monitor from the rank",
)
def telemetry(context: Context) -> Figures:
    words = command(context, script=["--steps", "1200"], backend="nccl" if context.cuda else "gloo")
    if not (context.cuda or context.jobs):
        return {"dry": NO_JOBS}
    variables = SAMPLED if context.cuda else SAMPLED | {"RANKWATCH_KERNEL_TIMINGS": "kineto"}
    with job(context, words, **variables) as training:
        training.until_running(1)
        found: dict[str, Any] = {}

        def seen() -> bool:
            found.update(training.api.read("/jobs/gpu-kit/kernels"))
            (host,) = {rank["host"] for rank in training.api.read("/jobs/gpu-kit/ranks")["ranks"]}
            node = training.api.read(f"/nodes/{host}")
            ranks = (rank for part in node["jobs"] for rank in part["ranks"])
            found["device"] = next((rank["device"] for rank in ranks if rank["device"]), None)
            return bool(found["kernels"]) and (found["device"] is not None or not context.cuda)

        training.until("kernels and the device are known", seen)
        training.until("the trend has a point", lambda: seen() and found["points"])
        timeline = training.api.read("/jobs/gpu-kit/timeline")
        summary = training.summary()
    return {
        "sources": found["sources"],
        "kernels": [{key: each[key] for key in ("name", "share", "median", "tail")} for each in found["kernels"][:6]],
        "points": len(found["points"]),
        "device": found["device"],
        "seconds a step": summary.get("step_seconds"),
        "timeline": str(timeline)[:600],
        "incidents": summary.get("incidents"),
    }


@part("auto", limit=90, proves="--auto finds the steps of a plain CUDA script with loader processes, and its hang")
def automatic(context: Context) -> Figures:
    words = ["--standalone", "--nproc-per-node", "1", "--auto", PLAIN]
    if not (context.cuda or context.jobs):
        return {"dry": NO_JOBS}
    found = recovered(context, words)
    assert found["culprits"] == [0], found
    return found


@part("doctor", limit=60, proves="rankwatch doctor finds the GPU, NVML and CUPTI in order")
def doctor(context: Context) -> Figures:
    done = subprocess.run(
        [sys.executable, "-m", "rankwatch", "doctor", "--json"],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    return {"exit code": done.returncode, "printed": done.stdout[:4000]}


@part("hugging-face", limit=60, proves="the Trainer's callback records steps on CUDA")
def hugging_face(context: Context) -> Figures:
    if not (context.cuda or context.jobs):
        return {"dry": "--jobs also runs the Trainer on the CPU"}
    transformers, torch = require("transformers"), require("torch")
    from rankwatch.integrations.transformers import RankwatchCallback

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> dict[str, Any]:
            return {"loss": self.layer(x).square().mean()}

    given = {"max_steps": 10, "report_to": [], "logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(context.folder), use_cpu=not context.cuda, **given)
    data = [{"x": torch.ones(8)} for _ in range(40)]
    trainer = transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[RankwatchCallback()])
    trainer.train()
    where = next(trainer.model.parameters()).device.type
    assert (trainer.state.global_step, where) == (10, context.device)
    return {"steps": 10, "device": where}


@part("lightning", limit=60, proves="the Lightning callbacks record steps on CUDA")
def lightning_trainer(context: Context) -> Figures:
    if not (context.cuda or context.jobs):
        return {"dry": "--jobs also runs the Trainer on the CPU"}
    torch = require("torch")
    lightning = require("lightning.pytorch")
    from lightning.pytorch.demos.boring_classes import BoringModel

    from rankwatch.integrations.lightning import FaultToleranceSectionsCallback

    callback = FaultToleranceSectionsCallback(autoresume=False, calculate_timeouts=False)
    trainer = lightning.Trainer(
        accelerator="gpu" if context.cuda else "cpu", devices=1, max_steps=10, logger=False, callbacks=[callback],
        enable_checkpointing=False, enable_progress_bar=False, default_root_dir=str(context.folder),
    )  # fmt: skip
    trainer.fit(BoringModel())
    assert trainer.global_step == 10
    return {"steps": 10, "device": str(trainer.strategy.root_device), "torch": torch.__version__}
