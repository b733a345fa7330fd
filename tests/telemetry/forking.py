"""A rank's script that starts other processes in every way that scripts do; run by ``test_forks.py``.

It starts all of them, prints ``again``, waits for a line on stdin, starts them once more and ends with a line of JSON:
for each kind of process the functions of the OpenTelemetry SDK that ran there, and the version of the SDK.
"""

# ruff: noqa: T201

from __future__ import annotations

import sys

if "--init" in sys.argv:
    import rankwatch

    rankwatch.init()

import concurrent.futures  # imports its executors when they are used, so after the exporter's thread has made its own
import json
import multiprocessing
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from importlib.metadata import version
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

if "--late-init" in sys.argv:
    import rankwatch

    rankwatch.init()

RANK = os.getpid()
of_sdk: list[str] = []
"""Functions of the SDK that ran in this process, a child, after it was forked."""


def note(frame: FrameType, event: str, _: Any) -> None:
    """A profile function: a child inherits it, so it also sees what the hooks of a fork call."""
    if event == "call" and os.getpid() != RANK and "/opentelemetry/" in frame.f_code.co_filename:
        of_sdk.append(frame.f_code.co_qualname)


class Items(Dataset):
    """Each item states what its worker has seen of the SDK."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, list[str]]:
        return index, of_sdk


def first(batch: list[tuple[int, list[str]]]) -> tuple[int, list[str]]:
    return batch[0]


def load(**options: Any) -> list[str]:
    """Two epochs of a data loader."""
    loader = DataLoader(Items(), num_workers=1, collate_fn=first, **options)
    seen = [item for _ in range(2) for item in loader]
    assert [index for index, _ in seen] == [0, 1, 2, 3] * 2
    return seen[0][1]


def forked() -> list[str]:
    """A child of ``os.fork`` that logs, imports, and uses a pool of threads, as a worker may."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            import logging
            import wave  # noqa: F401 - a module that nothing else has imported

            logging.getLogger("a child").warning("logs")
            with concurrent.futures.ThreadPoolExecutor() as pool:
                assert pool.submit(os.getpid).result() == os.getpid()
            assert [t.name for t in threading.enumerate() if "rankwatch" in t.name] == []
            os.write(writing, json.dumps(of_sdk).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as reported:
        seen: list[str] = json.loads(reported.read())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return seen


def what_ran(_: int) -> list[str]:
    return of_sdk


def pool() -> list[str]:
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
        return next(executor.map(what_ran, [0]))


def program() -> list[str]:
    """A program, and one with a function that runs between fork and exec: only then Python calls its hooks."""
    for more in ({}, {"preexec_fn": os.setpgrp}):
        done = subprocess.run([sys.executable, "-c", "print(42)"], capture_output=True, text=True, check=True, **more)  # type: ignore[call-overload]
        assert done.stdout == "42\n"
    return []


def lightning() -> list[str]:
    import lightning.pytorch as pl

    from rankwatch.integrations.lightning import FaultToleranceSectionsCallback

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: tuple[int, list[str]], _: int) -> torch.Tensor:
            self.seen = batch[1]
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    callback = FaultToleranceSectionsCallback(autoresume=False, calculate_timeouts=False)
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=2, callbacks=[callback], **off)
    model = Model()
    trainer.fit(model, DataLoader(Items(), num_workers=1, collate_fn=first))
    assert trainer.global_step == 8
    return model.seen


def hugging_face() -> list[str]:
    from transformers import Trainer, TrainingArguments

    from rankwatch.integrations.transformers import RankwatchCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, index: int, seen: list[str]) -> dict[str, torch.Tensor]:
            self.seen = seen
            return {"loss": self.layer(torch.ones(1)).sum()}

    off = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True}
    loading = {"dataloader_num_workers": 1, "dataloader_pin_memory": False, "remove_unused_columns": False}
    arguments = TrainingArguments(tempfile.mkdtemp(), max_steps=8, use_cpu=True, **off, **loading)
    model = Model()

    def collate(batch: list[tuple[int, list[str]]]) -> dict[str, Any]:
        return dict(zip(("index", "seen"), first(batch), strict=True))

    trainer = Trainer(model, arguments, collate, Items(), callbacks=[RankwatchCallback()])
    trainer.train()
    assert trainer.state.global_step == 8
    return model.seen


FORKED: dict[str, Callable[[], list[str]]] = {
    "fork": lambda: load(multiprocessing_context="fork"),
    "persistent": lambda: load(multiprocessing_context="fork", persistent_workers=True),
    "os.fork": forked,
    "pool": pool,
    "subprocess": program,
}
STARTED: dict[str, Callable[[], list[str]]] = {
    "spawn": lambda: load(multiprocessing_context="spawn", persistent_workers=True),
    "forkserver": lambda: load(multiprocessing_context="forkserver", persistent_workers=True),
}


def main() -> None:
    kinds = FORKED | (STARTED if "--all" in sys.argv else {})
    if "--lightning" in sys.argv:
        kinds = {"lightning": lightning} | kinds
    if "--hugging-face" in sys.argv:
        kinds = {"hugging face": hugging_face} | kinds
    if "--nvrx" in sys.argv:
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient  # type: ignore[import-not-found]

        RankMonitorClient().init_workload_monitoring()
    store = tempfile.mkdtemp()
    dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
    sys.setprofile(note)
    reported = {f"{kind}, before the first export": start() for kind, start in kinds.items()}
    print("again", flush=True)
    sys.stdin.readline()
    reported |= {kind: start() for kind, start in kinds.items()}
    sys.setprofile(None)
    print(json.dumps({"of the SDK": reported, "sdk": version("opentelemetry-sdk")}), flush=True)
    if "rankwatch" in sys.modules:
        sys.modules["rankwatch"].shutdown()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that shuts down


if __name__ == "__main__":
    main()
