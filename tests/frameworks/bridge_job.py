"""Megatron-Bridge's own fault tolerance around a GPT of megatron-core, on CPU: both packages as they are published.

Bridge's ``pretrain`` asserts CUDA, so its loop is this one; its modules, hooks and state are the published ones.
Packages that exist for CUDA alone are placeholders, which nothing here calls. megatron-core comes before them: it does
without.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

CUDA_ONLY = {
    "transformer_engine",
    "modelopt",
    "mamba_ssm",
    "causal_conv1d",
    "fla",
    "timm",
    "open_clip",
    "mlflow",
    "qwen_vl_utils",
}
STEPS, HANG_IN = 40, 20


class Empty(type):
    """A class whose every attribute is another one."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Placeholder(types.ModuleType):
    """A module whose every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Finder:
    """Finds the packages that need CUDA, after all other finders."""

    def find_spec(self, name: str, *_: object) -> Any:
        if name.partition(".")[0] in CUDA_ONLY:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        made = Placeholder(spec.name)
        made.__version__ = "2.10.0"  # type: ignore[attr-defined]
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    folder = Path(sys.argv[1])
    sys.meta_path.append(Finder())  # type: ignore[arg-type]
    import nvidia_resiliency_ext.inprocess as in_process
    from megatron.bridge.training import fault_tolerance, pretrain
    from megatron.bridge.training.config import FaultToleranceConfig
    from megatron.bridge.training.state import FaultToleranceState

    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    # Two things of attention that ask for CUDA on a CPU too: the random state of dropout, and the device of its buffer.
    type(tensor_parallel.get_cuda_rng_tracker()).fork = lambda *_: contextlib.nullcontext()
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    if rank == 0:
        print(
            f"<pretrain of {pretrain.__file__}>", f"<in process of {getattr(in_process, '__file__', None)}>", flush=True
        )
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, pipeline_dtype=torch.float32
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    settings = SimpleNamespace(
        checkpoint=SimpleNamespace(save=str(folder), async_save=False),
        ft=FaultToleranceConfig(enable_ft_package=True, calc_ft_timeouts=True),
    )
    state = SimpleNamespace(rank_monitor_client=None, fault_tolerance_state=FaultToleranceState())
    fault_tolerance.setup(settings, state)
    saved = folder / "saved.pt"
    first = 0
    if saved.exists():
        content = torch.load(saved)
        model.load_state_dict(content["model"])
        first = content["step"]
        fault_tolerance.on_checkpoint_loaded(is_local_chkpt=False, global_state=state)
    tokens = torch.arange(16).repeat(2, 1)
    mask = torch.ones(1, 1, 16, 16).triu(1).bool()
    for step in range(first, STEPS):
        fault_tolerance.on_training_step_start(state)
        if rank == 1 and attempt == 0 and step == HANG_IN:
            os.kill(os.getpid(), 19)
        loss = model(tokens, tokens, mask, labels=(tokens + 1) % 64).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()
        fault_tolerance.on_training_step_end(state)
        if step % 10 == 9:
            fault_tolerance.on_checkpointing_start(state)
            if rank == 0:
                torch.save({"model": model.state_dict(), "step": step + 1}, saved)
            dist.barrier()
            fault_tolerance.on_checkpointing_end(is_async_finalization=False, global_state=state)
    fault_tolerance.shutdown(state)
    if rank == 0:
        print(f"<attempt {attempt}: from step {first}, last loss {loss.item():.3f}>", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
