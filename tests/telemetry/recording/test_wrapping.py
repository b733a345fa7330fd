"""Callables that are wrapped from outside behave as before, and each call is a section."""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Iterator

import pytest

import rankwatch
from rankwatch.recording import sections
from rankwatch.recording.recorder import Recorder
from rankwatch.recording.shared_slots import Slots


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder(Slots.private())
    before = sections.attach(made)
    yield made
    sections.attach(before)


class Trainer:
    unit = "steps"

    def __init__(self, start: int = 0) -> None:
        self.done = start

    def training_step(self, count: int = 1) -> int:
        """One step."""
        self.done += count
        return self.done

    @staticmethod
    def collate(rows: list[int]) -> int:
        return sum(rows)

    @classmethod
    def named(cls, start: int) -> Trainer:
        return cls(start)

    async def later(self) -> str:
        await asyncio.sleep(0)
        return "done"


def finished(recorder: Recorder) -> list[str]:
    return [recorder.slots.name(section_id) for section_id, *_ in recorder.finished]


def test_a_method_of_one_object(recorder: Recorder) -> None:
    trainer, other = Trainer(), Trainer()
    wrapped = rankwatch.wrap(trainer, "training_step")
    assert wrapped is not None
    assert (trainer.training_step(2), other.training_step()) == (2, 1)
    assert finished(recorder) == ["Trainer.training_step"]
    assert trainer.training_step.__doc__ == "One step."
    wrapped.undo()
    wrapped.undo()
    trainer.training_step()
    assert finished(recorder) == ["Trainer.training_step"]
    assert "training_step" not in vars(trainer)


def test_methods_of_a_class_keep_their_kind(recorder: Recorder) -> None:
    handles = [rankwatch.wrap(Trainer, name, name) for name in ("training_step", "collate", "named", "later")]
    try:
        assert Trainer.collate([1, 2]) == Trainer().collate([1, 2]) == 3
        trainer = Trainer.named(5)
        assert trainer.training_step(count=2) == 7
        assert asyncio.run(trainer.later()) == "done"
        assert finished(recorder) == ["collate", "collate", "named", "training_step", "later"]
    finally:
        for handle in handles:
            assert handle is not None
            handle.undo()
    assert isinstance(vars(Trainer)["collate"], staticmethod)
    assert isinstance(vars(Trainer)["named"], classmethod)


def test_a_function_of_a_module(recorder: Recorder) -> None:
    module = types.ModuleType("package.loading")
    module.load = lambda: 1  # type: ignore[attr-defined]
    rankwatch.wrap(module, "load")
    assert module.load() == 1
    assert finished(recorder) == ["loading.load"]


def test_twice_is_once(recorder: Recorder) -> None:
    trainer = Trainer()
    assert rankwatch.wrap(trainer, "training_step") is not None
    assert rankwatch.wrap(trainer, "training_step") is None
    trainer.training_step()
    assert len(finished(recorder)) == 1


def test_an_error_passes_through(recorder: Recorder) -> None:
    trainer = Trainer()
    rankwatch.wrap(trainer, "training_step")
    with pytest.raises(TypeError):
        trainer.training_step("two")  # type: ignore[arg-type]
    assert finished(recorder) == ["Trainer.training_step"]


@pytest.mark.parametrize(
    ("target", "name", "words"),
    [
        (Trainer(), "train", "Trainer has no 'train'"),
        (Trainer(), "unit", "Trainer.unit is not a function or method"),
        (int, "bit_length", "int.bit_length cannot be replaced"),
    ],
)
def test_what_cannot_be_wrapped_is_reported_and_left_alone(
    target: object, name: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rankwatch"):
        assert rankwatch.wrap(target, name) is None
    assert words in caplog.text


def test_before_init_nothing_changes() -> None:
    trainer = Trainer()
    rankwatch.wrap(trainer, "training_step")
    assert trainer.training_step() == 1
