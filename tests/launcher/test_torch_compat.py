"""What the launcher does with versions of torch that lack names or bring unknown ones."""

from __future__ import annotations

import argparse
import ast
import signal
import tempfile
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from rankwatch_launcher import torch_compat


class WholeAgent:
    """An agent with every essential name of torch's and nothing else."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


for _name in torch_compat.PRIVATE_METHODS:
    setattr(WholeAgent, _name, lambda self: None)


class NewestAgent(WholeAgent):
    """The same with every optional name."""


setattr(NewestAgent, torch_compat.STUCK_CHECK, lambda self: None)


def test_a_missing_essential_method_is_a_complaint_and_an_optional_one_a_missing_feature() -> None:
    assert torch_compat.complaint() is None
    assert torch_compat.complaint(WholeAgent) is None
    assert "stuck in the kernel" in torch_compat.missing_features(WholeAgent)[0]
    assert torch_compat.missing_features(NewestAgent) == []
    assert "lacks object._" in str(torch_compat.complaint(object))


def test_an_unknown_version_is_a_warning_only() -> None:
    assert torch_compat.untested() is None
    assert torch_compat.untested("2.13.1+cu130") is None
    assert "torch 2.99.0 is untested" in str(torch_compat.untested("2.99.0"))


def test_an_older_configuration_has_the_defaults_of_its_time() -> None:
    older = SimpleNamespace(role="default")
    assert torch_compat.setting(older, "signals_to_handle") == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    assert torch_compat.setting(SimpleNamespace(shutdown_timeout=5), "shutdown_timeout") == 5
    assert torch_compat.fields(older, "role", "numa_options") == {"role": "default"}


def test_arguments_that_came_later_are_left_out() -> None:
    def older(self: object, spec: object) -> None: ...
    def newer(self: object, spec: object, shutdown_timeout: int = 30) -> None: ...
    def open_ended(self: object, **more: object) -> None: ...

    assert torch_compat.accepted(older, shutdown_timeout=5) == {}
    assert torch_compat.accepted(newer, shutdown_timeout=5) == {"shutdown_timeout": 5}
    assert torch_compat.accepted(open_ended, shutdown_timeout=5) == {"shutdown_timeout": 5}


def test_a_torch_that_replaces_signal_handlers_anyway_is_undone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with torch_compat.without_signal_handlers():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_torch_would_handle_meanwhile_goes_to_the_launcher() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: got.append(number))
    try:
        with torch_compat.without_signal_handlers():
            signal.signal(signal.SIGHUP, getattr(torch_compat.multiprocessing, torch_compat.TORCHS_HANDLER))
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert got == [signal.SIGHUP]


class OlderStore(torch_compat.TCPStore):
    """A store as before ``clone`` existed."""

    def __getattribute__(self, name: str) -> Any:
        if name == "clone":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("kind", [torch_compat.TCPStore, OlderStore])
def test_a_second_connection_reaches_the_same_store(kind: type[torch_compat.TCPStore]) -> None:
    store = kind("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    second = torch_compat.second_connection(store)
    assert second is not store
    store.set("key", "value")
    assert second.get("key") == b"value"


@pytest.mark.parametrize(("asked_for", "redirects"), [(False, Std.NONE), (False, Std.ALL), (True, Std.NONE)])
def test_error_files_of_many_attempts_stay_only_where_somebody_asked_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_for: bool, redirects: Std
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    specs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs") if asked_for else None, redirects=redirects)
    for attempt in range(2 * torch_compat.KEPT_ATTEMPTS):
        torch_compat.remove_old_errors(specs)
        ranks = {0: {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": str(attempt)}}
        Path(specs.reify(ranks).error_files[0]).write_text("{}")
    found = {int(each.parent.parent.name.rpartition("_")[2]) for each in tmp_path.rglob("error.json")}
    own = not asked_for and redirects is Std.NONE
    first = torch_compat.KEPT_ATTEMPTS - 1 if own else 0
    assert found == set(range(first, 2 * torch_compat.KEPT_ATTEMPTS))


LAUNCHER = Path(torch_compat.__file__).parent
OTHERS_NAMES = {
    "_fields",
    "_PATTERN",
    "_Unpickler",
    *dir(argparse),
    *dir(argparse.ArgumentParser()),
    *dir(argparse.ArgumentParser()._optionals),
}
"""Private names of the standard library, of a named tuple and of argparse, and the end of one of Slurm's variables."""
OF_REPORTS = {"_all_gather_base", "_allgather_base", "_reduce_scatter_base", "_worker_loop"}
"""Words in dumps and stacks, which the launcher reads and does not call."""


def test_the_list_of_private_names_is_complete() -> None:
    """Compared with what the launcher's source accesses, as an attribute, in an import or as the text of one."""
    own, accessed = set(), set()
    for tree in [ast.parse(file.read_text()) for file in LAUNCHER.rglob("*.py")]:
        listed = {id(n) for a in ast.walk(tree) if _lists(a) for n in ast.walk(a)}
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute):
                (own if isinstance(node.ctx, ast.Store) and _is_self(node.value) else accessed).add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                accessed |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in listed:
                accessed.add(node.value)
    listed_names = {*torch_compat.PRIVATE_METHODS, *torch_compat.PRIVATE_ATTRIBUTES, *torch_compat.OPTIONAL}
    private = {n for n in accessed if n.isidentifier() and n.startswith("_") and not n.startswith(("__", "_rankwatch"))}
    assert private - own - OTHERS_NAMES - OF_REPORTS <= listed_names
    assert listed_names - accessed - own == set()


def _lists(node: ast.AST) -> bool:
    names = {"PRIVATE_METHODS", "PRIVATE_ATTRIBUTES", "OPTIONAL"}
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in names


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
