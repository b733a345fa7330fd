"""Every block of docs/megatron.md runs, and its tables agree with the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rankwatch
from rankwatch.integrations import megatron
from rankwatch.integrations.nvrx import fault_tolerance, stand_in, straggler
from rankwatch.recording.shared_slots import read
from rankwatch_launcher.cli import main

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "megatron.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(containing: str) -> str:
    (found,) = [each for each in BLOCKS if containing in each]
    return str(found)


@pytest.fixture
def cfg(tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(checkpoint=SimpleNamespace(save=str(tmp_path), async_save=False))


def test_the_settings_and_the_loop(cfg: SimpleNamespace) -> None:
    names: dict[str, Any] = {"cfg": cfg}
    for containing in ("cfg.ft = ", "cfg.nvrx_straggler = ", "def train("):
        exec(block(containing), names)
    state = SimpleNamespace(rank_monitor_client=None, fault_tolerance_state=None, train_state=SimpleNamespace(step=0))
    seen = []

    def train_step() -> None:
        from rankwatch.recording import sections

        assert sections.attached() is not None
        reading = read(sections.attached().slots)
        assert reading is not None
        seen.append(set(reading.open_sections))

    names["train"](cfg, state, train_step, lambda: seen.append({"saved"}), 101)
    assert seen[:3] == [{"warmup"}, {"step"}, {"step"}]
    assert seen[100] == {"saved"}
    assert not rankwatch.is_initialized()


@pytest.mark.parametrize("containing", ["RankMonitorClient", "Detector"])
def test_the_blocks_that_stand_alone(containing: str) -> None:
    exec(block(containing), {})
    assert not rankwatch.is_initialized()


def test_the_stand_in() -> None:
    try:
        exec(block("stand_in.install()"), {})
        import nvidia_resiliency_ext.fault_tolerance as theirs  # type: ignore[import-not-found]

        assert theirs.RankMonitorClient is fault_tolerance.RankMonitorClient
    finally:
        stand_in.uninstall()


def test_every_setting_is_in_the_tables_with_its_default() -> None:
    for settings in (megatron.FaultToleranceConfig, megatron.NVRxStragglerDetectionConfig):
        for each in dataclasses.fields(settings):
            (row,) = re.findall(rf"^\|.*`{each.name}`[^|]*\|([^|]*)\|", PAGE, re.MULTILINE)
            default = f'"{each.default}"' if isinstance(each.default, str) else repr(each.default)
            assert f"`{default}`" in row, each.name


@pytest.mark.parametrize("of", [fault_tolerance.RankMonitorClient, straggler.Detector])
def test_the_manual_has_every_method_of_the_adapters(of: type) -> None:
    assert f"::: {of.__module__}.{of.__name__}\n" in (DOCS / "python-api.md").read_text()
    for name, method in inspect.getmembers(of, callable):
        assert name.startswith("_") or method.__doc__, name


def test_every_offered_module_is_in_the_table() -> None:
    assert {name.partition(".")[0] for name in stand_in.COUNTERPARTS if name} == {
        "fault_tolerance",
        "straggler",
        "attribution",
        "ptl_resiliency",
        "inprocess",
    }
    for target in {
        target
        for name, target in stand_in.COUNTERPARTS.items()
        if name in ("fault_tolerance", "straggler", "ptl_resiliency", "inprocess")
    }:
        assert f"`{target}`" in PAGE


def test_the_launchers_flags_are_accepted() -> None:
    (command,) = re.findall(r"\$launcher (.*?)```", PAGE, re.DOTALL)
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
        "NUM_NODES": "1",
        "NUM_GPUS_PER_NODE": "2",
    }.items():
        command = command.replace(f"${{{name}}}", value)
    reported = main.build_parser().parse_args(shlex.split(command.replace("\\\n", "")))
    assert (reported.rdzv_backend, reported.nproc_per_node, reported.training_script) == (
        "c10d",
        "2",
        "your_training_script.py",
    )
