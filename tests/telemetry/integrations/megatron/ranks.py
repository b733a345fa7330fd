"""What each rank runs in these tests: Megatron's order of hooks around an all-reduce, and a checkpoint to go on from.

The hooks are ours (``--hooks rankwatch``), or Bridge's own module, loaded from its file (``--hooks FILE``).

In the folder that all ranks share the test makes ``hang`` (rank 1 hangs in the step it runs, in the first attempt only)
and ``finish`` (all ranks leave the loop after the same step).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ.get("RANKWATCH_ATTEMPT", "1"))
SAVE_EVERY = 10


def bridge_hooks(file: str) -> ModuleType:
    from support import bridge

    return bridge.load(file)


def our_hooks() -> ModuleType:
    from rankwatch.integrations.megatron import hooks as megatron

    return megatron


def bridge_state() -> SimpleNamespace:
    """An object with what the hooks use of Bridge's GlobalState."""
    kept = SimpleNamespace(
        ft_state_path=None,
        is_persistent_chkpt_loaded=False,
        is_async_chkpt_enabled=False,
        is_calculating_timeouts=False,
        is_setup_section_open=False,
        seen_checkpoints_cnt=0,
        seen_tr_iters_cnt=0,
        curr_eval_iter_idx=0,
    )
    return SimpleNamespace(rank_monitor_client=None, fault_tolerance_state=kept, train_state=SimpleNamespace(step=0))


class Rank:
    def __init__(self, folder: Path, ft: Any, *, save: bool) -> None:
        self.folder, self.ft, self.save_folder = folder, ft, folder / "checkpoints"
        self.state = bridge_state()
        self.config = SimpleNamespace(
            checkpoint=SimpleNamespace(save=str(self.save_folder) if save else None, async_save=False),
            ft=SimpleNamespace(calc_ft_timeouts=True, simulate_fault=False),
        )

    def report(self, event: str, **content: Any) -> None:
        slots = os.environ.get("RANKWATCH_SLOTS_DIR")
        line = {"event": event, "attempt": ATTEMPT, "step": self.state.train_state.step, "slots": slots, **content}
        with (self.folder / f"rank-{RANK}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def limits(self) -> dict[str, float | None]:
        """What the client reports is in force."""
        return dict(self.state.rank_monitor_client.section_timeouts.section)

    def setup(self) -> None:
        dist.init_process_group("gloo")
        self.ft.setup(self.config, self.state)
        checkpoint = self.folder / "checkpoint"
        if checkpoint.exists():
            self.state.train_state.step = int(checkpoint.read_text())
            self.ft.on_checkpoint_loaded(is_local_chkpt=False, global_state=self.state)
        dist.barrier()
        self.report("start", limits=self.limits())

    def train(self) -> None:
        over = False
        while not over:
            self.ft.on_training_step_start(self.state)
            over = self.step()
            self.ft.on_training_step_end(self.state)
            self.state.train_state.step += 1
            if self.state.train_state.step % SAVE_EVERY == 0 or over:
                self.evaluate()
                self.save()
        self.report("end", limits=self.limits())
        dist.barrier()
        self.ft.shutdown(self.state)

    def step(self) -> bool:
        if RANK == 1 and ATTEMPT == 1 and (self.folder / "hang").exists():
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        time.sleep(0.02)
        flag = torch.tensor([float((self.folder / "finish").exists())])
        dist.all_reduce(flag)
        return bool(flag[0] > 0)

    def evaluate(self) -> None:
        for _ in range(2):
            self.ft.on_eval_step_start(self.state)
            time.sleep(0.01)
            self.ft.on_eval_step_end(self.state)

    def save(self) -> None:
        self.ft.on_checkpointing_start(self.state)
        if RANK == 0:
            unfinished = self.folder / "checkpoint.new"
            unfinished.write_text(str(self.state.train_state.step))
            unfinished.replace(self.folder / "checkpoint")
        dist.barrier()
        self.ft.on_checkpointing_end(is_async_finalization=False, global_state=self.state)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--hooks", default="rankwatch")
    options = parser.parse_args()
    try:
        torch.set_num_threads(1)
        rank = Rank(
            options.folder, our_hooks() if options.hooks == "rankwatch" else bridge_hooks(options.hooks), save=True
        )
        rank.setup()
        rank.train()
        os._exit(0)  # gloo's threads sometimes abort the interpreter's end
    except BaseException:  # noqa: BLE001 - whatever it was, it is shown and becomes the exit code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
