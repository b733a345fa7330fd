"""What emulated ranks are found doing when their stacks are taken: one reads its data, the others wait for it.

The functions are those of a large language model's training in three kinds of parallelism; py-spy shows as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rankwatch.contract.messages import Collective, Frame

_SITE: Final = "/opt/venv/lib/python3.11/site-packages"


def _frames(*reported: tuple[str, str, int]) -> tuple[Frame, ...]:
    return tuple(Frame(function, f"{_SITE}/{file}", line) for function, file, line in reported)


_OUTER: Final = (
    *_frames(
        ("train_step", "megatron/training/training.py", 1184),
        ("train", "megatron/training/training.py", 2063),
        ("pretrain", "megatron/training/training.py", 912),
        ("inner", "megatron/training/wrappers.py", 41),
    ),
    Frame("main", "/workspace/pretrain_gpt.py", 311),
    Frame("<module>", "/workspace/pretrain_gpt.py", 326),
)
WAITING: Final = (
    *_frames(
        ("all_reduce", "torch/distributed/distributed_c10d.py", 2810),
        ("wrapper", "torch/distributed/c10d_logger.py", 81),
        ("start_grad_sync", "megatron/core/distributed/param_and_grad_buffer.py", 322),
        ("register_grad_ready", "megatron/core/distributed/param_and_grad_buffer.py", 401),
        ("hook", "megatron/core/distributed/distributed_data_parallel.py", 377),
        ("_engine_run_backward", "torch/autograd/graph.py", 823),
        ("backward", "torch/autograd/__init__.py", 347),
        ("custom_backward", "megatron/core/pipeline_parallel/schedules.py", 155),
        ("backward_step", "megatron/core/pipeline_parallel/schedules.py", 402),
        ("forward_backward_pipelining_with_interleaving", "megatron/core/pipeline_parallel/schedules.py", 1311),
    ),
    *_OUTER,
)
STUCK: Final = (
    *_frames(
        ("readinto", "fsspec/spec.py", 1890),
        ("read", "fsspec/spec.py", 1877),
        ("get", "megatron/core/datasets/indexed_dataset.py", 611),
        ("__getitem__", "megatron/core/datasets/gpt_dataset.py", 243),
        ("fetch", "torch/utils/data/_utils/fetch.py", 52),
        ("__next__", "torch/utils/data/dataloader.py", 708),
        ("get_batch", "megatron/training/utils.py", 367),
        ("forward_step", "megatron/core/pipeline_parallel/schedules.py", 288),
    ),
    *_OUTER,
)
TENSOR_PARALLEL: Final = 8


def collectives(rank: int, *, behind: bool) -> Iterator[Collective]:
    """Positions in the groups of a rank; one that is behind has not entered the last gradient reduction."""
    first = rank // TENSOR_PARALLEL * TENSOR_PARALLEL
    yield Collective("default_pg", "barrier", 4, 4)
    yield Collective(f"dp ({rank % TENSOR_PARALLEL})", "all_reduce", 8192 - behind, 8191)
    tensor = tuple(range(first, first + TENSOR_PARALLEL))
    yield Collective(f"tp ({first})", "all_reduce", 524288, 524288, tensor)
