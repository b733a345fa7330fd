"""Train a small byte-level GPT with DistributedDataParallel, watched by Rankwatch.

The text is the source code of Python's own standard library, so there is nothing to download. Every line that Rankwatch
needs starts with ``rankwatch.``; take them out and plain PyTorch is left. Each of these runs the same file::

    rankwatch run --nproc-per-node 4 --section-timeout step=60 examples/train_gpt.py --checkpoint-dir runs/gpt
    torchrun --nproc-per-node 4 examples/train_gpt.py
    python examples/train_gpt.py --steps 20

Start it again with the same ``--checkpoint-dir`` and it resumes from the newest checkpoint, with the very batches that
an uninterrupted run would have seen. Several nodes need a folder for checkpoints that all of them share.

On a stop, by an operator or at the end of its time on the cluster, it saves after the step that all ranks agreed on. At
the end of training it marks the job as complete, and no launcher runs it again.

To see what Rankwatch does when a rank fails, add for example ``--inject rank=2,step=12,kind=hang``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sysconfig
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import rankwatch
from rankwatch.faults import inject as faults


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; each is a flag of the same name. The defaults suit a few CPU cores."""

    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    batch: int = 8  # sequences per rank and step
    steps: int = 100
    warmup: int = 10
    lr: float = 3e-3
    seed: int = 1337
    log_every: int = 10
    eval_every: int = 50
    checkpoint_every: int = 20


PRESETS = {
    "cpu": Config(),
    "gpu": Config(layers=12, heads=12, width=768, context=1024, batch=16, steps=2000, warmup=100, lr=6e-4,
                  eval_every=250, checkpoint_every=250),
}  # fmt: skip
VOCABULARY = 256  # one token a byte


class Block(nn.Module):
    """Causal self-attention, then an MLP, each after a norm. Shapes: B sequences, T tokens, C channels."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.out = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.mlp = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def forward(self, x_BTC: Tensor) -> Tensor:
        B, T, C = x_BTC.shape
        q, k, v = (
            part.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x_BTC)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.out(attended.transpose(1, 2).reshape(B, T, C))
        return cast(Tensor, x_BTC + self.mlp(self.norm2(x_BTC)))


class GPT(nn.Module):
    """A decoder-only transformer over bytes; ``forward`` returns the mean cross-entropy in nats per byte."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Embedding):  # ten times the usual: separates bytes from the first step on
                nn.init.normal_(module.weight, std=0.2)

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        x = self.token(inputs_BT) + self.position(torch.arange(inputs_BT.shape[1], device=inputs_BT.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())


class Corpus:
    """The standard library's top-level modules as bytes; every 20th file is held out for evaluation."""

    def __init__(self, config: Config) -> None:
        self.config = config
        folder = Path(sysconfig.get_path("stdlib"))
        files = sorted(folder.glob("*.py"))
        if len(files) < 20:
            raise SystemExit(f"{folder} holds {len(files)} .py files: this Python has no library sources to train on")
        self.held_out = _as_tensor([file for i, file in enumerate(files) if i % 20 == 0])
        self.train = _as_tensor([file for i, file in enumerate(files) if i % 20])

    def batch(self, stream: str, rank: int, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one step. A function of its arguments alone: a resumed run sees the same batches."""
        text = self.held_out if stream == "held-out" else self.train
        draw = random.Random(f"{self.config.seed} {stream} {rank} {step}")
        length = self.config.context + 1
        starts = [draw.randrange(len(text) - length) for _ in range(self.config.batch)]
        rows = torch.stack([text[start : start + length] for start in starts]).to(device).long()
        return rows[:, :-1], rows[:, 1:]


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """The training batches of one rank by step, for the data loader."""

    def __init__(self, corpus: Corpus, rank: int) -> None:
        self.corpus, self.rank = corpus, rank

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        return self.corpus.batch("train", self.rank, step, torch.device("cpu"))


def _as_tensor(files: list[Path]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


class Checkpoints:
    """Checkpoints ``step-N`` in one folder; the name appears once one is complete. The last two are kept."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.folder, self.model, self.optimizer = folder, model, optimizer

    def save(self, step: int) -> None:
        """All ranks write their part beside the final place; rank 0 renames when the last one is done."""
        final, unfinished = self.folder / f"step-{step:08d}", self.folder / "unfinished"
        if dist.get_rank() == 0:  # left by a killed attempt; no rank writes here before rank 0 joins dcp.save
            shutil.rmtree(unfinished, ignore_errors=True)
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer, "step": step}, checkpoint_id=unfinished)  # type: ignore[attr-defined]
        if dist.get_rank() == 0:
            shutil.rmtree(final, ignore_errors=True)
            unfinished.rename(final)
            pointer = self.folder / "latest.new"
            pointer.write_text(final.name)
            pointer.replace(self.folder / "latest")
            for old in sorted(self.folder.glob("step-*"))[:-2]:
                shutil.rmtree(old)
        dist.barrier()  # no rank may go on, and stop, before the checkpoint stands

    def load(self) -> int:
        """Restore the newest complete checkpoint and return the step to do next; 0 when there is none."""
        names = [path.name for path in sorted(self.folder.glob("step-*"))]
        newest = [names[-1] if names else None]
        dist.broadcast_object_list(newest)  # one rank chooses: on a shared file system others may see less
        if newest[0] is None:
            return 0
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "step": 0}
        dcp.load(state, checkpoint_id=self.folder / newest[0])  # type: ignore[attr-defined]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        return cast(int, state["step"])


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(done, 1.0))))


def mean_over_ranks(value: Tensor) -> float:
    value = value.detach().float().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


@torch.no_grad()
def evaluate(model: nn.Module, corpus: Corpus, device: torch.device, batches: int = 4) -> float:
    """Mean held-out loss over all ranks."""
    rank = dist.get_rank()
    losses = [model(*corpus.batch("held-out", rank, i, device)) for i in range(batches)]
    return mean_over_ranks(torch.stack(losses).mean())


class Report:
    """Rank 0's report: the mean loss every few steps, and the same as JSON for plotting."""

    def __init__(self, config: Config, metrics_file: Path | None, start: int) -> None:
        self.config, self.metrics_file, self.quiet = config, metrics_file, dist.get_rank() != 0
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))  # all that plain torchrun provides
        self.attempt = int(os.environ.get("RANKWATCH_ATTEMPT", restarts + 1))
        self.losses: list[Tensor] = []  # stay on the device: reading one every step would make the host wait
        self.since = time.monotonic()
        self.log(f"attempt {self.attempt}: step {start} comes first, {dist.get_world_size()} ranks")

    def step(self, step: int, loss: Tensor) -> None:
        """Keep the loss of one step; every ``log_every`` steps log their mean over steps and ranks."""
        self.losses.append(loss.detach())
        if (step + 1) % self.config.log_every:
            return
        mean = mean_over_ranks(torch.stack(self.losses).mean())
        tokens = len(self.losses) * self.config.batch * self.config.context * dist.get_world_size()
        now = time.monotonic()
        self.log(f"step {step}: loss {mean:.3f}, {tokens / (now - self.since):,.0f} tokens/s")
        self.losses, self.since = [], now
        if self.metrics_file and not self.quiet:  # appended, so that the story spans restarts
            with self.metrics_file.open("a") as file:
                file.write(json.dumps({"step": step, "loss": round(mean, 5), "attempt": self.attempt}) + "\n")

    def log(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)


def start_distributed() -> torch.device:
    """Join the process group: torchrun's, or a world of one when there is no launcher."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    else:
        device, backend = torch.device("cpu"), "gloo"
        torch.set_num_threads(1)  # ranks share the cores; more threads only get in each other's way
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    return device


def train(config: Config, options: argparse.Namespace) -> None:
    if options.inject:
        os.environ["RANKWATCH_INJECT"] = options.inject
    rankwatch.init()
    with rankwatch.section("setup"):
        device = start_distributed()
        rank = dist.get_rank()
        torch.manual_seed(config.seed)
        corpus = Corpus(config)
        model = GPT(config).to(device)
        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.95))
        checkpoints = Checkpoints(options.checkpoint_dir, model, optimizer) if options.checkpoint_dir else None
        start = checkpoints.load() if checkpoints else 0
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    report = Report(config, options.metrics_file, start)
    steps = range(start, config.steps)
    loader = DataLoader(Batches(corpus, rank), sampler=steps, batch_size=None, num_workers=options.workers)
    batches = iter(loader)

    for step in steps:
        with rankwatch.step(step):
            with rankwatch.section("data"):
                faults.maybe_inject(step)  # this and --inject are for demonstrations; your script needs neither
                inputs, targets = (tokens.to(device) for tokens in next(batches))
            with rankwatch.section("forward"), autocast:
                loss = ddp(inputs, targets)
            with rankwatch.section("backward"):
                loss.backward()
            with rankwatch.section("optimizer"):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(config, step)
                optimizer.step()
                optimizer.zero_grad()
            report.step(step, loss)
        rankwatch.heartbeat()

        done = step + 1
        stop = rankwatch.should_stop()  # the same answer on every rank, without a collective
        if checkpoints and (stop or done == config.steps or done % config.checkpoint_every == 0):
            with rankwatch.section("checkpointing"):
                checkpoints.save(done)
        if stop:
            report.log(f"asked to stop: leaving after step {step}")
            break
        if done == config.steps or done % config.eval_every == 0:
            with rankwatch.section("evaluation"), autocast:
                report.log(f"step {step}: held-out loss {evaluate(model, corpus, device):.3f}")
    else:
        rankwatch.mark_complete()  # nothing is left to train: no launcher runs this job again

    dist.barrier()  # rank 0 may hold the store, which must outlive every collective
    # With gloo, the last reference must not be the reducer's: it would wait for the group's thread with the GIL held,
    # which that thread may need in order to end (torch 2.13: 2 of 11 exits hung).
    del ddp
    dist.destroy_process_group()
    rankwatch.shutdown()


def parse(arguments: list[str] | None = None) -> tuple[Config, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="gpu" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint-dir", type=Path, help="save here, and go on from the newest one found")
    parser.add_argument("--metrics-file", type=Path, help="append one JSON line for each line printed")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data for each rank; 0: the rank")
    parser.add_argument("--inject", metavar="rank=R,step=S,kind=K", help="let a rank go wrong, to see what happens")
    for field in fields(Config):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), metavar=field.name.upper())
    options = parser.parse_args(arguments)
    given = {f.name: getattr(options, f.name) for f in fields(Config) if getattr(options, f.name) is not None}
    return replace(PRESETS[options.preset], **given), options


if __name__ == "__main__":
    train(*parse())
