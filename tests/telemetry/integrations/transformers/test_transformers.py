"""RankwatchCallback in a real Trainer of one process, event by event: which sections are open when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwatch.recording import scalars, shared_slots
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.scalars import Scalars

transformers = pytest.importorskip("transformers")

from rankwatch.integrations.transformers import RankwatchCallback  # noqa: E402
from telemetry.integrations.transformers.trainer import Tokens  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # the Trainer's advice on how to use this machine


class Stop(transformers.TrainerCallback):
    """Asks the ranks to stop after a step, as a launcher would; and notes what is open at each event."""

    def __init__(self, recorder: Recorder, after: int = 0) -> None:
        self._recorder, self._after = recorder, after
        self.seen: list[tuple[str, set[str]]] = []

    def note(self, event: str) -> None:
        words = self._recorder.words
        entries = range(shared_slots.OPEN, shared_slots.OPEN + 2 * shared_slots.OPEN_COUNT, 2)
        self.seen.append((event, {self._recorder.slots.name(words[i]) for i in entries if words[i]}))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("step")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("optimizer")
        if self._after and state.global_step + 1 == self._after:
            self._recorder.words[shared_slots.STOP_STEP] = self._after

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("evaluate")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("save")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.note("end")


def train(recorder: Recorder, folder: Path, *, after: int = 0, steps: int = 4, **arguments: Any) -> tuple[Any, Stop]:
    """Train a tiny model; the notes are taken before our callback acts on the same event."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    reported = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_strategy": "no"}
    notes = Stop(recorder, after)
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=2, **(reported | arguments)
        ),
        train_dataset=Tokens(64),
        eval_dataset=Tokens(4),
        callbacks=[notes, RankwatchCallback()],
    )
    trainer.train()
    return trainer, notes


@pytest.fixture
def recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Attached already: ``init()`` in the callback must not put another in its place."""
    monkeypatch.setenv("RANKWATCH_DISABLED", "1")
    return recorder


def test_steps_carry_the_trainers_numbers_and_it_is_complete(recorder: Recorder, tmp_path: Path) -> None:
    _, notes = train(recorder, tmp_path, gradient_accumulation_steps=2)
    assert notes.seen[:2] == [("step", {"setup"}), ("optimizer", {"step", "optimizer"})]
    assert [event for event, _ in notes.seen].count("step") == 4
    assert recorder.words[shared_slots.ITERATION] == 4
    assert recorder.words[shared_slots.COMPLETE] == 1
    finished = [recorder.slots.name(number) for number, *_ in recorder.finished]
    assert finished == ["setup", *["optimizer", "step"] * 4]


def test_evaluation_and_checkpointing_are_bracketed(recorder: Recorder, tmp_path: Path) -> None:
    reported = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    _, notes = train(recorder, tmp_path, **reported)
    assert [opened for event, opened in notes.seen if event == "evaluate"] == [{"evaluation"}] * 2
    assert [opened for event, opened in notes.seen if event == "save"] == [{"checkpointing"}] * 2
    assert notes.seen[-1] == ("end", set())


def test_an_agreed_stop_saves_once_and_does_not_evaluate(recorder: Recorder, tmp_path: Path) -> None:
    reported = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    trainer, notes = train(recorder, tmp_path, after=3, steps=50, **reported)
    assert trainer.state.global_step == 3
    assert [event for event, _ in notes.seen if event in ("evaluate", "save")] == ["save"]
    assert [each.name for each in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
    assert recorder.words[shared_slots.COMPLETE] == 0, "it is to be resumed"


def test_a_stop_after_the_very_last_step_leaves_nothing_to_train(recorder: Recorder, tmp_path: Path) -> None:
    train(recorder, tmp_path, after=4, steps=4, save_strategy="epoch")
    assert [each.name for each in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    assert recorder.words[shared_slots.COMPLETE] == 1


def test_predicting_without_training_leaves_nothing_open(recorder: Recorder, tmp_path: Path) -> None:
    trainer, notes = train(recorder, tmp_path, steps=1)
    notes.seen.clear()
    trainer.evaluate()
    assert notes.seen == [("evaluate", {"evaluation"})]
    trainer.predict(Tokens(4))
    notes.note("after")
    assert notes.seen[-1] == ("after", set())


def test_the_numbers_that_the_trainer_logs_are_passed_on_with_its_step(recorder: Recorder, tmp_path: Path) -> None:
    logged = Scalars(lambda reason: pytest.fail(f"dropped: {reason}"))
    scalars.attach(logged)
    try:
        trainer, _ = train(recorder, tmp_path, logging_strategy="steps", logging_steps=2, eval_strategy="epoch")
    finally:
        scalars.attach(None)
    history: dict[str, list[float]] = {}
    for entry in trainer.state.log_history:
        for name in entry.keys() - {"step"}:
            history.setdefault(name, []).append(entry[name])
    assert {"loss", "grad_norm", "learning_rate", "eval_loss", "train_runtime"} <= history.keys()
    assert len(history["loss"]) == 2
    means, non_finite, step = logged.take()
    assert (non_finite, step) == ({}, 4)
    assert means == {name: pytest.approx(sum(values) / len(values)) for name, values in history.items()}
