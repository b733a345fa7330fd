"""Which device :class:`CudaHealthCheck` looks at. The check itself needs a GPU: ``scripts/gpu.sh --only health``."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rankwatch.inprocess import health


@dataclass
class Cuda:
    """What of ``torch.cuda`` decides."""

    current: int
    devices: int

    def current_device(self) -> int:
        return self.current

    def device_count(self) -> int:
        return self.devices


@pytest.mark.parametrize(
    ("local_rank", "current", "devices", "expected"),
    [
        ("3", 0, 8, 3),  # tensors are moved to cuda:3, and no device is set
        ("3", 5, 8, 5),
        ("1", 0, 1, 0),  # each rank sees its own device alone, or ranks share one
        (None, 2, 8, 2),
    ],
)
def test_the_device_is_the_one_that_the_rank_uses(
    local_rank: str | None, current: int, devices: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if local_rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert health._device_of_rank(Cuda(current, devices)) == expected
