"""Megatron-Bridge's own modules, as they are published, against the stand-in: they run on Rankwatch unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.training import Training
from support.wheels import unpacked
from telemetry.integrations.megatron.test_on_ranks import QUICK, a_hang_is_found_by_the_calculated_limit, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("megatron-bridge==0.3.1", tmp_path_factory.mktemp("bridge")) / "megatron/bridge/training"


def test_its_fault_tolerance_module_finds_a_hang(watched: Training, bridge: Path) -> None:
    launcher = run(watched, *QUICK, hooks=str(bridge / "fault_tolerance.py"))
    a_hang_is_found_by_the_calculated_limit(watched, launcher)
    assert "FT: loaded timeouts from" in launcher.printed(), "it is Bridge's own code that ran"
