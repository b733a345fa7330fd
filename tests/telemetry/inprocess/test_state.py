"""What is reported and kept of an error."""

from __future__ import annotations

import gc
import weakref

import pytest

from rankwatch.inprocess.state import clear_frames, describe, is_collective_error, named


class Tensor:
    pass


def failing(held: list[weakref.ref[Tensor]]) -> None:
    def forward() -> None:
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        raise MemoryError("out of memory")

    try:
        forward()
    except MemoryError as error:
        raise RuntimeError("the step failed") from error


def test_an_error_that_is_kept_holds_no_tensors_and_neither_does_what_led_to_it() -> None:
    held: list[weakref.ref[Tensor]] = []
    with pytest.raises(RuntimeError) as caught:
        failing(held)
    error = caught.value
    clear_frames(error)
    gc.collect()
    assert held[0]() is None
    assert error.__cause__ is not None, "the error itself is as it was"


def test_an_error_that_followed_from_a_broken_collective_is_one_of_a_collective() -> None:
    broken = RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer")
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = broken
    assert is_collective_error(broken)
    assert is_collective_error(wrapped)
    assert not is_collective_error(ValueError("the step failed"))
    broken.__context__ = wrapped
    assert is_collective_error(wrapped), "a ring of them ends"


def test_an_error_that_cannot_describe_itself_has_a_name() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert (describe(MuteError()), named(MuteError())) == ("raised MuteError", "MuteError")
    assert describe(ValueError("first\nsecond")) == "raised ValueError: first"
