"""What a real Trainer shows of itself in one process, without a launcher: steps, evaluations, fits, failures."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

import rankwatch
from rankwatch.contract import env
from rankwatch.integrations.lightning import FaultToleranceCallback, PreemptionCallback, StragglerDetectionCallback
from rankwatch.integrations.lightning.fit_monitor import monitor_of
from rankwatch.integrations.lightning.simulated_fault import SimulatedFaultParams
from rankwatch.recording import sections, shared_slots
from support.http_receiver import HttpReceiver
from telemetry.receiver import Receiver

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on how to use this machine


def opened() -> set[str]:
    recorder = sections.attached()
    reading = shared_slots.read(recorder.slots) if recorder is not None else None
    return set(reading.open_sections) if reading is not None else set()


def completed() -> int:
    """Steps that were completed."""
    recorder = sections.attached()
    assert recorder is not None
    return recorder.iteration


class Model(pl.LightningModule):
    """Notes what is open in each batch, and before it how many steps are complete."""

    def __init__(self, act: Callable[[int], Any] = lambda _: None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.act = act
        self.trained: list[tuple[int, set[str]]] = []
        self.evaluated: list[tuple[int, set[str]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trained.append((completed() if rankwatch.is_initialized() else -1, opened()))
        self.act(batch_idx)
        return self.layer(batch).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluated.append((completed() if rankwatch.is_initialized() else -1, opened()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ByHand(Model):
    """Steps its optimizer itself, past Lightning, so that the global step stays at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx).backward()
        self.optimizers(use_pl_optimizer=False).step()


class Logging(Model):
    """Logs a value that changes and one that does not, as tensors on the model's device."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        self.log("share", torch.tensor(0.25, device=self.device))
        return loss


class Kept(pl.loggers.logger.Logger):
    """Keeps what Lightning logs."""

    name, version = "kept", "0"

    def __init__(self) -> None:
        self.values: list[tuple[str, float]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.values += [(name, value) for name, value in metrics.items() if name != "epoch"]

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


@pytest.fixture
def synchronised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each reading of a tensor's value as a number: on a device it waits for all that was launched."""
    read: list[str] = []
    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
        original = getattr(torch.Tensor, name)

        def counted(*given: Any, _original: Any = original, _name: str = name, **more: Any) -> Any:
            read.append(_name)
            return _original(*given, **more)

        monkeypatch.setattr(torch.Tensor, name, counted)
    return read


def trainer(folder: Path, *callbacks: Any, **more: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "enable_checkpointing": False, **quiet, **more}
    return pl.Trainer(default_root_dir=folder, callbacks=list(callbacks), **given)


def data(batches: int = 10) -> Any:
    return torch.utils.data.DataLoader(torch.randn(batches, 2))


def all_three() -> list[Any]:
    return [FaultToleranceCallback(True, True), StragglerDetectionCallback(), PreemptionCallback()]


def test_a_step_is_the_optimizers_however_many_batches_it_takes(tmp_path: Path) -> None:
    rankwatch.init()
    model, callbacks = Model(), all_three()[::2]
    made = trainer(tmp_path, *callbacks, accumulate_grad_batches=4, val_check_interval=2, limit_val_batches=1)
    made.fit(model, data(), data())
    assert [steps for steps, _ in model.trained] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert all(names == {"step"} for _, names in model.trained)
    in_training = model.evaluated[-5:]  # those of the sanity check come before
    assert in_training == [(steps, {"evaluation"}) for steps in (0, 1, 1, 2, 3)], "it interrupts the step"
    assert (made.global_step, completed()) == (3, 3)


def test_optimizers_that_lightning_does_not_see_step_with_each_batch(tmp_path: Path) -> None:
    rankwatch.init()
    model = ByHand()
    made = trainer(tmp_path, FaultToleranceCallback(False, False))
    made.fit(model, data(4))
    assert made.global_step == 0
    assert [steps for steps, _ in model.trained] == [0, 1, 2, 3]
    assert completed() == 4


def test_one_after_the_other_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.FINISHED_FLAG, str(tmp_path / "flags" / "finished"))
    before = signal.getsignal(signal.SIGTERM)
    callbacks = all_three()
    model = Model()
    for _ in range(2):  # two trainers
        made = trainer(tmp_path, *callbacks, max_epochs=2)
        for epochs in (2, 4):  # two fits each
            made.fit_loop.max_epochs = epochs
            made.fit(model, data(3))
            assert made.global_step == 3 * epochs
            assert not rankwatch.is_initialized(), "the session that it began has ended"
            assert signal.getsignal(signal.SIGTERM) is before
    assert len(model.trained) == 24
    assert all(names == {"step"} for _, names in model.trained)
    assert (tmp_path / "flags" / "finished").exists()


def test_after_an_exception_the_next_fit_is_watched_again(tmp_path: Path) -> None:
    def fail(batch: int) -> None:
        if batch == 2 and len(model.trained) == 3:
            raise RuntimeError("no memory")

    before = signal.getsignal(signal.SIGTERM)
    callbacks = all_three()
    model = Model(fail)
    made = trainer(tmp_path, *callbacks)
    with pytest.raises(RuntimeError, match="no memory"):
        made.fit(model, data(4))
    assert (opened(), completed()) == (set(), 2), "the step that failed is closed, and not counted"
    assert rankwatch.is_initialized(), "a rank that hangs on its way out would be seen"
    assert signal.getsignal(signal.SIGTERM) is before
    assert made.save_checkpoint.__qualname__ == "Trainer.save_checkpoint", "what was wrapped is put back"
    made.fit(model, data(4))
    assert made.global_step > 4
    assert not rankwatch.is_initialized()


@pytest.mark.parametrize("what", ["validate", "test", "predict"])
def test_what_is_no_training_is_not_watched(tmp_path: Path, what: str) -> None:
    class Whole(Model):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.validation_step(batch, batch_idx)

        def predict_step(self, batch: Any, batch_idx: int) -> None:
            self.validation_step(batch, batch_idx)

    before = signal.getsignal(signal.SIGTERM)
    model, made = Whole(), trainer(tmp_path, *all_three())
    getattr(made, what)(model, data(3))
    assert model.evaluated == [(-1, set())] * 3
    assert not monitor_of(made).running
    assert signal.getsignal(signal.SIGTERM) is before


def test_switched_off_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = HttpReceiver()
    try:
        monkeypatch.setenv("RANKWATCH_DISABLED", "1")
        monkeypatch.setenv(env.MONITOR_URL, monitor.url)
        monkeypatch.setenv(env.JOB_ID, "j")
        asked = []

        def look(_: int) -> None:
            asked.extend(thread.name for thread in threading.enumerate() if thread.name.startswith("rankwatch"))

        model = Model(look)
        made = trainer(tmp_path, FaultToleranceCallback(True, True), StragglerDetectionCallback(0.01))
        made.fit(model, data(3), data(3))
        assert made.global_step == 3
        assert (asked, monitor.posted) == ([], [])
    finally:
        monitor.close()


def test_logged_values_arrive_and_are_read_no_more_often_than_by_lightnings_logger(
    tmp_path: Path, receiver: Receiver, synchronised: list[str]
) -> None:
    def fit(*callbacks: Any) -> tuple[list[tuple[str, float]], int]:
        kept, before = Kept(), len(synchronised)
        trainer(tmp_path, *callbacks, logger=kept, log_every_n_steps=5).fit(Logging(), data(20))
        return kept.values, len(synchronised) - before

    alone, usual = fit()
    assert [name for name, _ in alone] == ["loss", "share"] * 4
    assert usual >= len(alone), "the logger's own readings are counted"

    rankwatch.init(monitor=receiver.url, job_id="j", rank=0, world_size=1, export_interval=0.2)
    logged, with_ours = fit(FaultToleranceCallback(False, False))
    assert with_ours - usual <= len(logged)
    rankwatch.shutdown()
    arrived: dict[str, list[float]] = {"loss": [], "share": []}
    for report in receiver.reports:
        for (name,), value in report.points.get("rankwatch.training.scalar", {}).items():
            arrived[name].append(value)
    losses = [value for name, value in logged if name == "loss"]
    assert set(arrived["share"]) == {0.25}
    assert arrived["loss"], "reports have means of the values since the last one"
    assert all(min(losses) - 1e-6 <= mean <= max(losses) + 1e-6 for mean in arrived["loss"])


def test_trouble_of_ours_is_reported_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    fault = SimulatedFaultParams("exception", 0.0)  # strikes the main thread, and this is another one
    callback = FaultToleranceCallback(True, True, fault, exp_dir=tmp_path / "file")
    made = trainer(tmp_path, callback, PreemptionCallback())
    training = threading.Thread(target=made.fit, args=(Model(), data(3)))
    training.start()
    training.join(60)
    assert made.global_step == 3
    for words in ("no fault is simulated", "cannot be used, timeouts are calculated again", "in the main thread"):
        assert words in caplog.text
