"""Which device: a GPU wherever it is plugged in, else a place on a host."""

from __future__ import annotations

import socket

import pytest
import torch

from rankwatch.rerun.device import Device, here


def test_a_gpu_is_known_by_its_uuid_anywhere() -> None:
    assert Device("a", "GPU-1").is_same(Device("b", "GPU-1"))
    assert not Device("a", "GPU-1").is_same(Device("a", "GPU-2"))
    assert not Device("a", "local rank 0").is_same(Device("b", "local rank 0"))
    assert Device("a", "local rank 0").is_same(Device("a", "local rank 0"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert here() == Device(socket.gethostname(), "local rank 3")
    assert str(here("board 7")) == f"board 7 of {socket.gethostname()}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_has_a_uuid() -> None:
    assert here().name.startswith("GPU-")
