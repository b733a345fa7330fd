from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rankwatch.integrations.nvrx import fault_tolerance, report, stand_in, straggler
from rankwatch.integrations.nvrx.missing_names import REPLACEMENTS
from rankwatch.integrations.nvrx.stand_in import COUNTERPARTS, REPLACED, StandInError

LAZY = ("ptl_resiliency", "inprocess")


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    yield
    stand_in.uninstall()
    assert not [name for name in sys.modules if name.startswith(REPLACED)]


def test_callers_find_what_they_import() -> None:
    stand_in.install()
    stand_in.install()
    import nvidia_resiliency_ext.straggler as theirs  # type: ignore[import-not-found]
    from nvidia_resiliency_ext.attribution.straggler import Detector  # type: ignore[import-not-found]
    from nvidia_resiliency_ext.fault_tolerance import (  # type: ignore[import-not-found]
        RankMonitorClient,
        RankMonitorClientError,
        WorkloadAction,
    )
    from nvidia_resiliency_ext.straggler.reporting import Report  # type: ignore[import-not-found]

    assert RankMonitorClient is fault_tolerance.RankMonitorClient
    assert RankMonitorClientError is fault_tolerance.RankMonitorClientError
    assert WorkloadAction.ExcludeThisNode.value == 1
    assert Detector is straggler.Detector is theirs.Detector
    assert theirs.CallableId is straggler.CallableId
    assert Report is report.Report
    assert "Detector" in dir(theirs)


@pytest.mark.parametrize("name", [name for name in COUNTERPARTS if not name.startswith(LAZY)])
def test_every_offered_module_is_there(name: str) -> None:
    stand_in.install()
    module = importlib.import_module(f"{REPLACED}.{name}".rstrip("."))
    assert getattr(module, stand_in.MARK)


@pytest.mark.parametrize("name", [name for name in COUNTERPARTS if name.startswith("ptl_resiliency")])
def test_lightning_is_imported_when_it_is_used(name: str) -> None:
    if importlib.util.find_spec(COUNTERPARTS[name]) is None:
        pytest.skip("rankwatch.integrations.lightning is not there")
    code = f"""
import sys
from rankwatch.integrations.nvrx import stand_in
stand_in.install()
import {REPLACED}.{name} as theirs
assert "rankwatch.integrations.lightning" not in sys.modules
assert not any(name in sys.modules for name in ("torch", "lightning", "pytorch_lightning"))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_module_below_one_of_ours_has_its_counterpart() -> None:
    if importlib.util.find_spec("rankwatch.inprocess") is None:
        pytest.skip("rankwatch.inprocess is not there")
    stand_in.install()
    theirs = importlib.import_module(f"{REPLACED}.inprocess")
    ours = importlib.import_module("rankwatch.inprocess")
    assert theirs.Wrapper is ours.Wrapper
    assert importlib.util.find_spec(f"{REPLACED}.inprocess.no_such_module") is None


@pytest.mark.parametrize(
    "name", ["checkpointing", "checkpointing.local", "shared_utils.health_check", "fault_tolerance.launcher"]
)
def test_what_has_no_counterpart_is_missing_as_it_is_without_the_package(name: str) -> None:
    stand_in.install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{REPLACED}.{name}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    stand_in.install()
    module = importlib.import_module(f"{REPLACED}.fault_tolerance")
    assert not hasattr(module, "no_such_name")
    with pytest.raises(AttributeError, match="stands in for nvidia_resiliency_ext"):
        _ = module.no_such_name


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_an_import_of_a_missing_name_states_its_replacement(name: str) -> None:
    """`from ... import` shows the message, below the module and below its package."""
    stand_in.install()
    if importlib.util.find_spec(COUNTERPARTS[name.partition(".")[0]]) is None:
        pytest.skip("the counterpart needs an extra that is not installed")
    module, _, last = name.rpartition(".")
    for where in {module, module.partition(".")[0]}:
        with pytest.raises(ImportError) as refused:
            exec(f"from {REPLACED}.{where} import {last}", {})
        assert REPLACEMENTS[name].removeprefix("none: ") in str(refused.value)


def test_modules_of_the_in_process_restart_have_the_names_that_exist() -> None:
    stand_in.install()
    rank_assignment = importlib.import_module(f"{REPLACED}.inprocess.rank_assignment")
    assert rank_assignment.ShiftRanks is importlib.import_module("rankwatch.inprocess").ShiftRanks


def test_a_module_without_counterpart_is_missing_and_the_log_states_where_it_comes_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand_in.install()
    for name in ("checkpointing", "shared_utils.health_check", "inprocess.monitor_process"):
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(f"{REPLACED}.{name}")
    warned = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    assert warned == [f"{REPLACED}.{name}" for name in ("checkpointing", "shared_utils", "inprocess.monitor_process")]
    wrapper = importlib.import_module(f"{REPLACED}.inprocess.wrap").Wrapper
    assert wrapper is importlib.import_module("rankwatch.inprocess").Wrapper


def test_it_does_not_come_after_the_real_one(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real = ModuleType(REPLACED)
    real.__path__ = ["elsewhere"]
    monkeypatch.setitem(sys.modules, REPLACED, real)
    with pytest.raises(StandInError, match=r"imported from \['elsewhere'\] already.*before that"):
        stand_in.install()
    stand_in.install_as_asked({stand_in.VARIABLE: "nvrx"})
    assert "already" in caplog.text
    assert sys.modules[REPLACED] is real
    monkeypatch.delitem(sys.modules, REPLACED)


def test_the_variable_states_whether(caplog: pytest.LogCaptureFixture) -> None:
    stand_in.install_as_asked({})
    assert importlib.util.find_spec(REPLACED) is None
    stand_in.install_as_asked({stand_in.VARIABLE: "something"})
    assert "RANKWATCH_STAND_IN must be nvrx, not 'something'" in caplog.text
    assert importlib.util.find_spec(REPLACED) is None
    stand_in.install_as_asked({stand_in.VARIABLE: "NVRx"})
    assert importlib.util.find_spec(REPLACED) is not None


def test_what_has_no_counterpart_comes_from_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But nothing of a package that has one, the in-process restart for example."""
    for name in ("", "checkpointing", "inprocess", "fault_tolerance"):
        (tmp_path / REPLACED / name).mkdir(exist_ok=True)
        (tmp_path / REPLACED / name / "__init__.py").write_text("theirs = True\n")
    (tmp_path / REPLACED / "fault_tolerance" / "dict_utils.py").write_text("theirs = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    stand_in.install()
    for name in ("checkpointing", "fault_tolerance.dict_utils"):
        assert importlib.import_module(f"{REPLACED}.{name}").theirs
    ours = importlib.import_module(f"{REPLACED}.fault_tolerance")
    assert ours.RankMonitorClient.__module__ == "rankwatch.integrations.nvrx.fault_tolerance"
    assert importlib.import_module(f"{REPLACED}.inprocess").Wrapper.__module__.startswith("rankwatch.inprocess")
    with pytest.raises(AttributeError):
        _ = ours.theirs
