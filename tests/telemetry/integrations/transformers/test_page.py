"""The code of ``docs/hugging-face.md`` runs, and the reference names every parameter."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from rankwatch.integrations.accelerate import Steps  # noqa: E402
from rankwatch.integrations.transformers import RankwatchCallback  # noqa: E402
from telemetry.integrations.transformers.trainer import Tokens  # noqa: E402

PAGE = Path(__file__).parents[4] / "docs" / "hugging-face.md"
TRAINER, PLAIN = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(block: str, **names: Any) -> None:
    exec(compile(block, "docs/hugging-face.md", "exec"), {"__name__": "a_reader", **names})


@pytest.mark.filterwarnings("ignore")  # the Trainer's advice on how to use this machine
def test_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    reported: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), max_steps=1, **reported)
    run(TRAINER, model=transformers.GPT2LMHeadModel(config), arguments=arguments, dataset=Tokens(8))
    model = torch.nn.Linear(4, 1)
    loader = torch.utils.data.DataLoader(torch.randn(4, 4))
    run(PLAIN, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=loader)


@pytest.mark.parametrize("documented", [RankwatchCallback, Steps], ids=lambda each: each.__name__)
def test_the_reference_has_every_parameter(documented: type) -> None:
    """The manual's Python API is made of signatures and docstrings."""
    arguments = inspect.cleandoc(documented.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == list(inspect.signature(documented).parameters)
    assert f".{documented.__name__}\n" in (PAGE.parent / "python-api.md").read_text()
