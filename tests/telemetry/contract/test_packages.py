"""Whose code a file is."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest
import torch

import rankwatch
from rankwatch.contract.messages import Frame
from rankwatch.contract.packages import RANKWATCH, TORCH, package_of
from rankwatch.contract.peers import waits_for_peers


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", "torch"),
        ("/usr/lib/python3/dist-packages/wandb/sdk/wandb_run.py", "wandb"),
        ("/opt/venv/lib/python3.12/site-packages/six.py", "six"),
        ("/opt/pytorch/torch/distributed/distributed_c10d.py", "torch"),
        ("torch/_tensor.py", "torch"),
        ("/src/rankwatch/telemetry/rankwatch/recording/session.py", "rankwatch"),
        ("C:\\venv\\Lib\\site-packages\\torch\\cuda\\__init__.py", "torch"),
        ("/usr/lib/python3.11/threading.py", "python"),
        ("<frozen runpy>", "python"),
        ("/srv/ada/torch/train.py", ""),
        ("/srv/ada/wandb/train.py", ""),
        ("/srv/ada/rankwatch/train.py", ""),
        ("<string>", ""),
    ],
)
def test_a_file_is_of_what_is_installed_or_of_the_script(path: str, package: str) -> None:
    assert package_of(path) == package


def test_a_function_of_a_user_in_a_folder_called_torch_waits_for_no_peers() -> None:
    assert not waits_for_peers((Frame("wait", "/srv/ada/torch/train.py", 3),))


def test_backward_waits_for_peers_but_not_while_it_runs_code_of_the_script() -> None:
    engine = Frame("_engine_run_backward", "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 9)
    caller = Frame("main", "/srv/train.py", 1)
    recomputed = Frame("linear", "/venv/lib/python3.11/site-packages/torch/nn/functional.py", 3)
    script = Frame("backward", "/srv/train.py", 7)
    for device in (True, False):
        assert waits_for_peers((engine, caller), device=device)
        assert waits_for_peers((recomputed, script, engine, caller), device=device)
        assert waits_for_peers((Frame("futex", "libc.so.6", 0), engine, caller), device=device), "the engine's own code"
        for inside in ((script,), (Frame("wait", "/usr/lib/python3.11/threading.py", 3), script)):
            frames = (*inside, engine, caller)
            assert waits_for_peers(frames, device=device) is device, "any launch may wait for a device"


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("_DistWrapper.all_reduce", "distributed/checkpoint/utils.py"),
        ("FileBaton.wait", "utils/file_baton.py"),
        ("AsyncCompile.wait", "_inductor/async_compile.py"),
        ("TuningProcess.recv", "_inductor/autotune_process.py"),
    ],
)
def test_what_else_is_called_like_a_collective_in_torch_waits_for_no_peers(function: str, file: str) -> None:
    """A checkpoint is written within the first; the others wait for a lock or for processes of the rank."""
    within = Frame(function, f"/venv/lib/python3.11/site-packages/torch/{file}", 9)
    assert (Path(torch.__path__[0]) / file).exists()
    assert not waits_for_peers((Frame("fsync", "/srv/train.py", 1), within))
    below = Frame("gather_object", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3)
    assert waits_for_peers((below, within))


def test_what_is_in_the_packages_is_known() -> None:
    found = {each.name + ("" if each.ispkg else ".py") for each in pkgutil.iter_modules(rankwatch.__path__)}
    assert found - {"__main__.py"} == RANKWATCH
    there = {path.name for path in Path(torch.__path__[0]).iterdir()}
    assert there >= TORCH
