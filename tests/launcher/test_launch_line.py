"""The line that launches a job again is sent without what may be a secret."""

from __future__ import annotations

import shlex

import pytest

from rankwatch_launcher.launch_line import LONGEST, launch_line


def shown(line: str) -> str:
    """How the monitor gets to see these arguments."""
    return launch_line("rankwatch run", shlex.split(line), "/srv/my runs")


@pytest.mark.parametrize(
    "line",
    [
        "--nproc-per-node 8 --nnodes 1:2 train.py --lr 1e-4 --max-tokens 4096 --tokenizer /models/llama --author me",
        "train.py --max_tokens=4_000 model.num_tokens=7e9 --token-budget 2B --run-name llama3_8b_2024_11_bs512",
        "--rdzv-endpoint host:29500 -m pkg.train data.key_frames=3 'prompt=a b' --keyboard x",
    ],
)
def test_what_is_no_secret_is_kept_as_it_was(line: str) -> None:
    assert shown(line) == f"cd '/srv/my runs' && rankwatch run {line}"


@pytest.mark.parametrize(
    "line",
    [
        "--token hunter2 train.py",
        "train.py --hf-token=hunter2",
        "train.py --wandb_api_key hunter2",
        "train.py +logger.password=hunter2",
        "train.py --db postgresql://me:hunter2@host/db",
        "train.py --key hunter2",
        'train.py \'config={"secret": "hunter2"}\'',
        "train.py --extra 'lr: 1, token: hunter2'",
        "train.py --header 'Authorization: Bearer hunter2'",
        "train.py hf_hunter2hunter2hunter2",
        "train.py --id 0123456789abcdef0123456789abcdef01234567",
        "train.py --sas hunter2",
        "train.py --aws-secret-access-key=hunter2",
    ],
)
def test_a_secret_is_left_out(line: str) -> None:
    line = shown(line)
    assert "hunter2" not in line
    assert "0123456789abcdef" not in line
    assert "<secret>" in line
    assert line.startswith("cd '/srv/my runs' && rankwatch run ")


def test_a_line_that_is_too_long_or_cannot_be_shown_is_not_sent() -> None:
    assert shown("x" * LONGEST) == ""
    assert launch_line("rankwatch run", ["a\nb"], "/") == ""
