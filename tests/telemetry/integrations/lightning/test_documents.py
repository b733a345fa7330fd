"""The code of ``docs/lightning.md`` runs, and the reference names every parameter of the callbacks."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "lightning.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on how to use this machine
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_its_code_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "finished"))
    exec(compile(block, "docs/lightning.md", "exec"), {"__name__": "a_reader"})


@pytest.mark.parametrize("name", ["FaultToleranceCallback", "StragglerDetectionCallback", "PreemptionCallback"])
def test_the_reference_has_every_parameter(name: str) -> None:
    """The manual's Python API is made of signatures and docstrings."""
    from rankwatch.integrations import lightning

    documented = getattr(lightning, name)
    arguments = inspect.cleandoc(documented.__doc__).partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == list(inspect.signature(documented).parameters)
    assert f"::: rankwatch.integrations.lightning.{name}\n" in (PAGE.parent / "python-api.md").read_text()
