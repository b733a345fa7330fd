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
    """So does the in-process restart, which has other names there."""
    for name in ("", "checkpointing", "inprocess", "fault_tolerance"):
        (tmp_path / REPLACED / name).mkdir(exist_ok=True)
        (tmp_path / REPLACED / name / "__init__.py").write_text("theirs = True\n")
    (tmp_path / REPLACED / "fault_tolerance" / "dict_utils.py").write_text("theirs = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    stand_in.install()
    for name in ("checkpointing", "inprocess", "fault_tolerance.dict_utils"):
        assert importlib.import_module(f"{REPLACED}.{name}").theirs
    ours = importlib.import_module(f"{REPLACED}.fault_tolerance")
    assert ours.RankMonitorClient.__module__ == "rankwatch.integrations.nvrx.fault_tolerance"


def test_the_installed_package_finds_its_own_names_below_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "inprocess", "fault_tolerance"):
        (tmp_path / REPLACED / name).mkdir(exist_ok=True)
        (tmp_path / REPLACED / name / "__init__.py").write_text("")
    (tmp_path / REPLACED / "fault_tolerance" / "data.py").write_text("class AuthkeyMsg: ...\nclass RankInfo: ...\n")
    (tmp_path / REPLACED / "inprocess" / "nested.py").write_text(
        f"from {REPLACED}.fault_tolerance.data import AuthkeyMsg, RankInfo\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    stand_in.install()
    nested = importlib.import_module(f"{REPLACED}.inprocess.nested")
    data = importlib.import_module(f"{REPLACED}.fault_tolerance.data")
    assert nested.AuthkeyMsg is data.AuthkeyMsg
    assert nested.RankInfo is fault_tolerance.RankInfo, "a name of ours is ours for everyone"


def test_an_installed_package_that_cannot_be_imported_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / REPLACED / "fault_tolerance").mkdir(parents=True)
    (tmp_path / REPLACED / "fault_tolerance" / "data.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    stand_in.install()
    with pytest.raises(ImportError, match="installed package cannot be imported: No module named 'no_such_dependency'"):
        exec(f"from {REPLACED}.fault_tolerance.data import AuthkeyMsg", {})
