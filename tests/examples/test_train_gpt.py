"""examples/train_gpt.py: it learns, resumes, runs under plain torchrun, and fails on request."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rankwatch
from rankwatch.contract import env as environment
from rankwatch.recording.shared_slots import COMPLETE, STOP_STEP, Slots

TRAIN = Path(__file__).parents[2] / "examples" / "train_gpt.py"
SMALL = ("--preset", "cpu", "--layers", "2", "--width", "64", "--context", "32")
SECONDS = 90

FOREIGN = ("RANKWATCH_", "OTEL_", "TORCHELASTIC_")  # variables of a run that this one must not take for its own

Start = Callable[..., "subprocess.Popen[str]"]
Here = Callable[..., None]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the script with its metrics in ``metrics.jsonl``; whatever still runs at the end is ended."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: object, ranks: int | None = None, **variables: str) -> subprocess.Popen[str]:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
        command = [sys.executable, *([] if ranks else ["-W", "error"]), *torchrun, str(TRAIN), *SMALL]
        command += ["--metrics-file", str(tmp_path / "metrics.jsonl"), *map(str, arguments)]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        process = subprocess.Popen(
            command,
            env=inherited | {"OMP_NUM_THREADS": "1"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # torchrun passes it on to its ranks
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.stdout:
            process.stdout.close()


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=SECONDS)
    return process.returncode, output


def losses(tmp_path: Path, attempt: int = 1) -> dict[int, float]:
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["attempt"] for line in lines} == {attempt}
    return {line["step"]: line["loss"] for line in lines}


@pytest.fixture(scope="module")
def train_gpt() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt", TRAIN)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_gpt"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def here(train_gpt: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Run the script as a world of one in this process, which spares each run the seconds that importing torch takes.

    ``in_step`` is called where a fault would strike.
    """
    from torch import distributed

    for name in os.environ:
        if name in ("RANK", "WORLD_SIZE") or name.startswith(FOREIGN):
            monkeypatch.delenv(name)

    def run(*arguments: object, in_step: Callable[[int], None] = lambda step: None) -> None:
        monkeypatch.setattr(train_gpt.faults, "maybe_inject", in_step)
        metrics = ("--metrics-file", str(tmp_path / "metrics.jsonl"))
        try:
            train_gpt.train(*train_gpt.parse([*SMALL, *metrics, *map(str, arguments)]))
        finally:
            rankwatch.shutdown()
            if distributed.is_initialized():
                distributed.destroy_process_group()

    return run


def test_loss_falls_without_any_launcher(start: Start, tmp_path: Path) -> None:
    code, output = finish(start("--steps", 40, "--log-every", 5, "--eval-every", 20))
    assert code == 0, output
    curve = losses(tmp_path)
    assert list(curve) == list(range(4, 40, 5))
    assert curve[4] > 5  # near ln 256: it knows nothing yet
    assert curve[39] < 3.5
    assert output.count("held-out loss") == 2


def test_goes_on_from_the_newest_checkpoint_as_if_nothing_had_happened(
    start: Start, here: Here, tmp_path: Path
) -> None:
    every = ("--steps", 12, "--log-every", 1, "--checkpoint-every", 3, "--checkpoint-dir")
    here(*every, tmp_path / "other")
    uninterrupted = losses(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()

    # In a process of its own: torch can deadlock where a process group is freed by an exception in the midst of a step.
    interrupted = start(*every, tmp_path / "kept", RANKWATCH_INJECT="rank=0,step=10,kind=exit,code=3")
    code, output = finish(interrupted)
    assert code == 3, output
    assert losses(tmp_path) == {step: loss for step, loss in uninterrupted.items() if step < 10}
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "kept" / "unfinished").mkdir()  # what a rank leaves that is killed while it saves

    here(*every, tmp_path / "kept")
    assert losses(tmp_path) == {step: loss for step, loss in uninterrupted.items() if step >= 9}
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["latest", "step-00000009", "step-00000012"]
    assert (tmp_path / "kept" / "latest").read_text() == "step-00000012"


def test_saves_and_leaves_after_the_agreed_stop_step(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.SLOTS_DIR, str(tmp_path / "slots"))

    def hand_down(step: int) -> None:  # as a launcher does: a step ahead of where the ranks are
        if step == 4:
            Slots.open(tmp_path / "slots" / environment.slots_file(0)).words[STOP_STEP] = 8

    kept = ("--checkpoint-dir", tmp_path / "kept", "--checkpoint-every", 1_000_000)
    here("--steps", 1_000_000, "--log-every", 1, *kept, in_step=hand_down)
    assert max(losses(tmp_path)) == 7
    assert (tmp_path / "kept" / "latest").read_text() == "step-00000008"
    slots = Slots.open(tmp_path / "slots" / environment.slots_file(0))
    assert not slots.words[COMPLETE]

    slots.words[STOP_STEP] = 0
    here("--steps", 10, "--log-every", 1, *kept)
    assert max(losses(tmp_path)) == 9
    assert slots.words[COMPLETE], "there is nothing left to train"


def test_a_data_loaders_workers_bring_the_same_batches(here: Here, tmp_path: Path) -> None:
    here("--steps", 4, "--log-every", 1)
    alone = losses(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    here("--steps", 4, "--log-every", 1, "--workers", 2)
    assert losses(tmp_path) == alone


@pytest.mark.long
def test_ranks_train_together_under_plain_torchrun(start: Start, tmp_path: Path) -> None:
    code, output = finish(start("--steps", 20, "--log-every", 5, "--checkpoint-dir", tmp_path / "kept", ranks=2))
    assert code == 0, output
    curve = losses(tmp_path)
    assert list(curve) == [4, 9, 14, 19]
    assert curve[19] < curve[4] - 1
    assert (tmp_path / "kept" / "latest").read_text() == "step-00000020"


def test_an_injected_exception_fails_the_run(start: Start, tmp_path: Path) -> None:
    code, output = finish(start("--steps", 20, "--log-every", 1, "--inject", "rank=0,step=3,kind=exception"))
    assert code == 1
    assert "InjectedFaultError: injected on rank 0 in step 3" in output
    assert max(losses(tmp_path)) == 2


def test_each_rank_and_step_has_its_own_batch_and_always_the_same(train_gpt: ModuleType) -> None:
    import torch

    corpus, again = (train_gpt.Corpus(train_gpt.Config()) for _ in range(2))

    def batch(of: Any, *where: object) -> list[list[int]]:
        inputs, targets = of.batch(*where, torch.device("cpu"))
        assert inputs.shape == targets.shape == (8, 64)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        rows: list[list[int]] = inputs.tolist()
        return rows

    assert batch(corpus, "train", 1, 7) == batch(again, "train", 1, 7)
    different = [batch(corpus, "train", 1, 7), batch(corpus, "train", 1, 8), batch(corpus, "train", 2, 7)]
    assert all(a != b for i, a in enumerate(different) for b in different[:i])


def test_the_held_out_text_is_not_trained_on(train_gpt: ModuleType) -> None:
    corpus = train_gpt.Corpus(train_gpt.Config())
    train, held_out = bytes(corpus.train.tolist()), bytes(corpus.held_out.tolist())
    assert len(train) > 10 * len(held_out) > 100_000
    assert held_out[:2000] not in train
