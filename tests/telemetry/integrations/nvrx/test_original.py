"""Our interfaces against nvidia-resiliency-ext 0.4.1 as it is published: the same calls, names and defaults."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwatch.integrations.nvrx import config, fault_tolerance, report, straggler, timeouts
from support.wheels import unpacked

pytestmark = pytest.mark.long

PUBLIC = [
    ("fault_tolerance/rank_monitor_client.py", fault_tolerance.RankMonitorClient),
    ("straggler/straggler.py", straggler.Detector),
    ("straggler/reporting.py", report.Report),
    ("fault_tolerance/data.py", fault_tolerance.WorkloadControlRequest),
]
DATA = [
    ("fault_tolerance/config.py", config.FaultToleranceConfig),
    ("fault_tolerance/data.py", timeouts.HeartbeatTimeouts),
    ("fault_tolerance/data.py", timeouts.SectionTimeouts),
    ("fault_tolerance/data.py", fault_tolerance.RankInfo),
    ("straggler/straggler.py", straggler.CallableId),
    ("straggler/reporting.py", straggler.StragglerId),
    ("straggler/reporting.py", report.Report),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("nvidia-resiliency-ext==0.4.1", tmp_path_factory.mktemp("nvrx")) / "nvidia_resiliency_ext"


def definition(file: Path, name: str) -> ast.ClassDef:
    """A class by its source: to import it would need CUDA."""
    found = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name]
    return found[0]


def parameters(function: ast.FunctionDef) -> list[tuple[str, str | None]]:
    """Each with its default as Python writes it; self and cls left out."""
    names = [argument.arg for argument in function.args.args]
    defaults = [None] * (len(names) - len(function.args.defaults)) + [ast.unparse(d) for d in function.args.defaults]
    return list(zip(names, defaults, strict=True))[1:]


def our_parameters(function: Any) -> list[tuple[str, str | None]]:
    found = [each for each in inspect.signature(function).parameters.values() if each.name not in ("self", "cls")]
    return [(each.name, None if each.default is each.empty else repr(each.default)) for each in found]


@pytest.mark.parametrize(("file", "ours"), PUBLIC, ids=lambda of: getattr(of, "__name__", ""))
def test_every_public_method_takes_the_same(original: Path, file: str, ours: type) -> None:
    methods = {
        node.name: parameters(node)
        for node in definition(original / file, ours.__name__).body
        if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_"))
    }
    assert methods
    for name, theirs in methods.items():
        taken = our_parameters(getattr(ours, name))
        assert taken[: len(theirs)] == theirs, name
        assert all(default is not None for _, default in taken[len(theirs) :]), f"{name} asks for more"


@pytest.mark.parametrize(("file", "ours"), DATA, ids=lambda of: getattr(of, "__name__", ""))
def test_every_field_is_there(original: Path, file: str, ours: type) -> None:
    theirs = [
        node.target.id
        for node in definition(original / file, ours.__name__).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert theirs
    assert [each.name for each in dataclasses.fields(ours)] == theirs


@pytest.mark.parametrize("package", ["fault_tolerance", "straggler"])
def test_what_the_packages_export_is_there_or_known_to_be_left_out(original: Path, package: str) -> None:
    left_out = {
        "RankMonitorServer",
        "InvalidStateTransitionException",
        "RankMonitorState",
        "RankMonitorStateMachine",
    }  # the original's own processes, of which Rankwatch has none
    exported = {
        name.asname or name.name
        for node in ast.parse((original / package / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    ours = {"fault_tolerance": fault_tolerance, "straggler": straggler}[package]
    assert {name for name in exported if not hasattr(ours, name)} == (
        left_out if package == "fault_tolerance" else set()
    )


def test_the_defaults_of_the_settings(original: Path) -> None:
    namespace: dict[str, Any] = {}
    source = (original / "fault_tolerance/config.py").read_text()
    made = definition(original / "fault_tolerance/config.py", "FaultToleranceConfig")
    made.body = [node for node in made.body if not isinstance(node, ast.FunctionDef)]
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    plain = [node for node in imports if "yaml" not in ast.unparse(node)]
    exec(compile(ast.Module([*plain, made], []), "config", "exec"), namespace)
    theirs = dataclasses.asdict(namespace["FaultToleranceConfig"]())
    assert dataclasses.asdict(config.FaultToleranceConfig()) == theirs


def test_its_in_process_restart_is_ours_though_it_is_installed(original: Path) -> None:
    """Megatron-Bridge's pretrain.py imports it, and uses its names only where it is enabled."""
    code = f"""
import sys
sys.path.insert(0, {str(original.parent)!r})
from rankwatch.integrations.nvrx import stand_in
stand_in.install()
import nvidia_resiliency_ext.inprocess as inprocess
assert inprocess.Wrapper.__module__.startswith("rankwatch.inprocess"), inprocess.Wrapper
try:
    inprocess.rank_assignment.Tree
except ImportError as error:
    assert "use rankwatch.inprocess.Wrapper" in str(error), error
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
