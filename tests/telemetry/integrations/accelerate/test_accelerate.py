"""Steps around a real Accelerator: one for each step of the optimizer, however many batches that takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankwatch
from rankwatch.recording import shared_slots
from rankwatch.recording.recorder import Recorder

accelerate = pytest.importorskip("accelerate")
torch = pytest.importorskip("torch")

from rankwatch.integrations.accelerate import Steps  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Accelerate's advice on how to use this machine


def finished(recorder: Recorder) -> list[str]:
    return [recorder.slots.name(number) for number, *_ in recorder.finished]


def train(batches: int, *, accumulate: int, folder: Path, iteration: int | None = None) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.DataLoader(torch.randn(batches, 4))
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    steps = Steps(accelerator, iteration=iteration)
    for batch in loader:
        with accelerator.accumulate(model), steps:
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()
        assert rankwatch.should_stop() is False
    accelerator.save_state(str(folder))


@pytest.fixture
def recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Attached already: ``init()`` in ``Steps`` must not put another in its place."""
    monkeypatch.setenv("RANKWATCH_DISABLED", "1")
    return recorder


def test_a_step_for_each_batch(recorder: Recorder, tmp_path: Path) -> None:
    train(3, accumulate=1, folder=tmp_path, iteration=7)
    assert finished(recorder) == [*["backward", "step"] * 3, "checkpointing"]
    assert recorder.words[shared_slots.ITERATION] == 10, "steps 7, 8 and 9"


def test_a_step_for_as_many_batches_as_are_accumulated(recorder: Recorder, tmp_path: Path) -> None:
    train(5, accumulate=2, folder=tmp_path)
    # The last batch of a loader ends a step, as Accelerate has it.
    assert finished(recorder) == [*["backward", "backward", "step"] * 2, "backward", "step", "checkpointing"]
    assert recorder.words[shared_slots.ITERATION] == 3


def test_a_batch_that_fails_completes_no_step(recorder: Recorder) -> None:
    steps = Steps(accelerate.Accelerator(cpu=True))
    with pytest.raises(RuntimeError, match="out of memory"), steps:
        raise RuntimeError("out of memory")
    assert finished(recorder) == ["step"]
    assert recorder.words[shared_slots.ITERATION] == 0
    with steps:
        pass
    assert recorder.words[shared_slots.ITERATION] == 1
