"""The code of ``docs/lightning.md`` runs, and its tables name every parameter with its default."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[4] / "docs" / "lightning.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on how to use this machine
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_its_code_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "finished"))
    exec(compile(block, "docs/lightning.md", "exec"), {"__name__": "a_reader"})


@pytest.mark.parametrize("name", ["FaultToleranceCallback", "StragglerDetectionCallback", "PreemptionCallback"])
def test_its_tables_name_every_parameter_with_its_default(name: str) -> None:
    from rankwatch.integrations import lightning

    first_table = PAGE.partition(f"## {name}\n")[2].partition("|---|")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", first_table, re.MULTILINE))
    known = inspect.signature(getattr(lightning, name)).parameters
    assert list(rows) == list(known)
    for parameter, reported in rows.items():
        default: Any = known[parameter].default
        assert reported == ("required" if default is inspect.Parameter.empty else f"`{default!r}`"), parameter
