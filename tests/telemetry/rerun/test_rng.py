"""Random numbers go back: what follows is the same, bit for bit, and survives a checkpoint."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch

from rankwatch.rerun import rng


def draw() -> tuple[float, float, list[float]]:
    return random.random(), float(np.random.random()), torch.rand(3).tolist()


def test_every_generator_goes_back() -> None:
    random.gauss(0, 1)  # leaves a second value behind, which is state too
    state = rng.capture()
    first = draw(), random.gauss(0, 1)
    assert (draw(), random.gauss(0, 1)) != first
    rng.restore(state)
    assert (draw(), random.gauss(0, 1)) == first


def test_the_state_survives_a_checkpoint() -> None:
    buffer = io.BytesIO()
    torch.save(rng.capture(), buffer)
    first = draw()
    buffer.seek(0)
    rng.restore(torch.load(buffer, weights_only=True))
    assert draw() == first


def test_lists_in_the_place_of_tuples_are_taken() -> None:
    state = rng.capture()
    first = draw()
    version, internal, gauss = state["python"]
    rng.restore({**state, "python": [version, list(internal), gauss], "numpy": list(state["numpy"])})
    assert draw() == first


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_goes_back() -> None:
    torch.rand(1, device="cuda")
    state = rng.capture()
    first = torch.rand(3, device="cuda").tolist()
    assert torch.rand(3, device="cuda").tolist() != first
    rng.restore(state)
    assert torch.rand(3, device="cuda").tolist() == first


def test_cuda_is_not_woken_for_it() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("CUDA is awake already")
    assert "cuda" not in rng.capture()
    assert not torch.cuda.is_initialized()
