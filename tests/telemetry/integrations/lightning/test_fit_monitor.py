"""What a real Trainer shows of itself in one process, without a launcher: steps, evaluations, fits, failures."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import rankwatch
from rankwatch.contract import env
from support.http_receiver import HttpReceiver
from telemetry.receiver import Receiver

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on how to use this machine


@pytest.fixture
def fits() -> Any:
    """The module of models and trainers."""
    from telemetry.integrations.lightning import fit_models

    return fit_models


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


def test_a_step_is_the_optimizers_however_many_batches_it_takes(fits: Any, tmp_path: Path) -> None:
    rankwatch.init()
    model, callbacks = fits.Model(), fits.all_three()[::2]
    made = fits.trainer(tmp_path, *callbacks, accumulate_grad_batches=4, val_check_interval=2, limit_val_batches=1)
    made.fit(model, fits.data(), fits.data())
    assert [steps for steps, _ in model.trained] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert all(names == {"step"} for _, names in model.trained)
    in_training = model.evaluated[-5:]  # those of the sanity check come before
    assert in_training == [(steps, {"evaluation"}) for steps in (0, 1, 1, 2, 3)], "it interrupts the step"
    assert (made.global_step, fits.completed()) == (3, 3)


def test_optimizers_that_lightning_does_not_see_step_with_each_batch(fits: Any, tmp_path: Path) -> None:
    rankwatch.init()
    model = fits.ByHand()
    made = fits.trainer(tmp_path, fits.FaultToleranceCallback(False, False))
    made.fit(model, fits.data(4))
    assert made.global_step == 0
    assert [steps for steps, _ in model.trained] == [0, 1, 2, 3]
    assert fits.completed() == 4


def test_one_after_the_other_in_one_process(fits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.FINISHED_FLAG, str(tmp_path / "flags" / "finished"))
    before = signal.getsignal(signal.SIGTERM)
    callbacks = fits.all_three()
    model = fits.Model()
    for _ in range(2):  # two trainers
        made = fits.trainer(tmp_path, *callbacks, max_epochs=2)
        for epochs in (2, 4):  # two fits each
            made.fit_loop.max_epochs = epochs
            made.fit(model, fits.data(3))
            assert made.global_step == 3 * epochs
            assert not rankwatch.is_initialized(), "the session that it began has ended"
            assert signal.getsignal(signal.SIGTERM) is before
    assert len(model.trained) == 24
    assert all(names == {"step"} for _, names in model.trained)
    assert (tmp_path / "flags" / "finished").exists()


def test_after_an_exception_the_next_fit_is_watched_again(fits: Any, tmp_path: Path) -> None:
    def fail(batch: int) -> None:
        if batch == 2 and len(model.trained) == 3:
            raise RuntimeError("no memory")

    before = signal.getsignal(signal.SIGTERM)
    callbacks = fits.all_three()
    model = fits.Model(fail)
    made = fits.trainer(tmp_path, *callbacks)
    with pytest.raises(RuntimeError, match="no memory"):
        made.fit(model, fits.data(4))
    assert (fits.opened(), fits.completed()) == (set(), 2), "the step that failed is closed, and not counted"
    assert rankwatch.is_initialized(), "a rank that hangs on its way out would be seen"
    assert signal.getsignal(signal.SIGTERM) is before
    assert made.save_checkpoint.__qualname__ == "Trainer.save_checkpoint", "what was wrapped is put back"
    made.fit(model, fits.data(4))
    assert made.global_step > 4
    assert not rankwatch.is_initialized()


@pytest.mark.parametrize("what", ["validate", "test", "predict"])
def test_what_is_no_training_is_not_watched(fits: Any, tmp_path: Path, what: str) -> None:
    class Whole(fits.Model):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.validation_step(batch, batch_idx)

        def predict_step(self, batch: Any, batch_idx: int) -> None:
            self.validation_step(batch, batch_idx)

    before = signal.getsignal(signal.SIGTERM)
    model, made = Whole(), fits.trainer(tmp_path, *fits.all_three())
    getattr(made, what)(model, fits.data(3))
    assert model.evaluated == [(-1, set())] * 3
    assert not fits.monitor_of(made).running
    assert signal.getsignal(signal.SIGTERM) is before


def test_switched_off_nothing_is_done(fits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = HttpReceiver()
    try:
        monkeypatch.setenv("RANKWATCH_DISABLED", "1")
        monkeypatch.setenv(env.MONITOR_URL, monitor.url)
        monkeypatch.setenv(env.JOB_ID, "j")
        asked = []

        def look(_: int) -> None:
            asked.extend(thread.name for thread in threading.enumerate() if thread.name.startswith("rankwatch"))

        model = fits.Model(look)
        made = fits.trainer(tmp_path, fits.FaultToleranceCallback(True, True), fits.StragglerDetectionCallback(0.01))
        made.fit(model, fits.data(3), fits.data(3))
        assert made.global_step == 3
        assert (asked, monitor.posted) == ([], [])
    finally:
        monitor.close()


def test_logged_values_arrive_and_are_read_no_more_often_than_by_lightnings_logger(
    fits: Any, tmp_path: Path, receiver: Receiver, synchronised: list[str]
) -> None:
    def fit(*callbacks: Any) -> tuple[list[tuple[str, float]], int]:
        kept, before = fits.Kept(), len(synchronised)
        fits.trainer(tmp_path, *callbacks, logger=kept, log_every_n_steps=5).fit(fits.Logging(), fits.data(20))
        return kept.values, len(synchronised) - before

    alone, usual = fit()
    assert [name for name, _ in alone] == ["loss", "share"] * 4
    assert usual >= len(alone), "the logger's own readings are counted"

    rankwatch.init(monitor=receiver.url, job_id="j", rank=0, world_size=1, export_interval=0.2)
    logged, with_ours = fit(fits.FaultToleranceCallback(False, False))
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


def test_trouble_of_ours_is_reported_and_training_goes_on(
    fits: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    fault = fits.SimulatedFaultParams("exception", 0.0)  # strikes the main thread, and this is another one
    callback = fits.FaultToleranceCallback(True, True, fault, exp_dir=tmp_path / "file")
    made = fits.trainer(tmp_path, callback, fits.PreemptionCallback())
    training = threading.Thread(target=made.fit, args=(fits.Model(), fits.data(3)))
    training.start()
    training.join(60)
    assert made.global_step == 3
    for words in ("no fault is simulated", "cannot be used, timeouts are calculated again", "in the main thread"):
        assert words in caplog.text
