"""The page on in-process restarts states what the code does."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import rankwatch
from rankwatch import inprocess

PAGE = (Path(__file__).parents[3] / "docs" / "in-process.md").read_text()


def test_every_name_of_the_page_exists() -> None:
    assert set(re.findall(r"inprocess\.([A-Za-z]\w*)", PAGE)) - {"md", "Wrapper"} <= set(inprocess.__all__)


def test_the_code_blocks_run() -> None:
    ran: list[Any] = []
    distributed = types.SimpleNamespace(init_process_group=ran.append)
    torch = types.SimpleNamespace(distributed=distributed)
    given = {"load_checkpoint": lambda: 998, "train_on": ran.append}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        own = {**given, "torch": torch, "rankwatch": rankwatch, "inprocess": inprocess}
        code = re.sub(r"^(import|from) .*$", "", block, flags=re.MULTILINE).replace("rankwatch.init()", "")
        code = re.sub(r"^train\(\)$", "train.__wrapped__()", code, flags=re.MULTILINE)
        exec(compile(code, "in-process.md", "exec"), own)
    assert ran == ["gloo", 998, 999]
