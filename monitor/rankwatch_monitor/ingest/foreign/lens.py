"""What the metrics and spans of other OpenTelemetry emitters say about training, by their names.

How this works
--------------
NVIDIA's NeMo Lens, as Megatron-LM, Megatron-Bridge and NeMo-RL use it, and scripts with metrics of their own, tell
nothing in Rankwatch's words. But a few of their names say that training moves, which step it has reached and what it is
busy with; here stands which ones. A name means one thing wherever it comes from, so all of it is tables, and functions
of a name alone. What it comes to for a process is kept in :mod:`.lens_progress`.

A sign is *strong* when it comes with every step, or every few of them, as long as training goes on: then its absence
says something. Others, such as a loss or a saved checkpoint, are signs of life when they come, and say nothing when
they do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from rankwatch.contract import semconv


class Told(StrEnum):
    """What a metric tells of training."""

    STEP = "step"
    """Its value is the number of the last step, or of steps so far. Strong."""
    STEPS_TIMED = "steps timed"
    """A histogram with one duration for each step, or for each of the emitter's log intervals. Strong."""
    WORK = "work"
    """A count of what training consumes: tokens, samples. Strong."""
    SIGN = "sign"
    """It changes as training goes on."""


SIGNS: Final = frozenset(
    {
        "megatron.training.loss",
        "megatron.training.grad_norm",
        "megatron.training.learning_rate",
        "megatron.training.throughput_tflops",
        "megatron.training.throughput_tps",
        "megatron.training.tokens_per_sec",
        "megatron.training.skipped_iters",
        "rl.reward.mean",
        "rl.kl_divergence",
        "rl.policy_loss",
        "rl.value_loss",
        "rl.entropy",
        "rl.grad_norm",
        "rl.response_length.mean",
    }
)
"""Metrics that Megatron-LM and NeMo Lens set at each log interval, or at each step of reinforcement learning."""
STEPS: Final = frozenset({"step", "steps", "iteration", "iterations"})
"""What a step is called; ``global_step`` is two words here."""
WORK: Final = frozenset({"tokens", "samples", "sequences", "examples", "batches"})
_TIME: Final = frozenset({"duration", "time", "seconds", "s", "ms", "milliseconds", "us", "microseconds"})
_OF_TRAINING: Final = frozenset(
    {
        "nv",
        "dl",
        "nemo",
        "megatron",
        "rl",
        "train",
        "training",
        "trainer",
        "loop",
        "model",
        "job",
        "optimizer",
        "global",
    }
)
"""Words that may stand before. ``inference.steps``, ``eval.step`` and ``skipped_iterations`` are of something else."""
_OF_COUNTING: Final = frozenset(
    {"total", "count", "current", "last", "completed", "number", "processed", "consumed", "seen"}
)
_WORD: Final = re.compile(r"[a-z]+")

SECONDS: Final[Mapping[str, float]] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0}
"""Units of durations (UCUM)."""

ITERATIONS: Final = (
    semconv.ATTR_ITERATION,
    "nv.dl.iteration",
    "nv.dl.training.step",
    "megatron.iteration",
    "rl.iteration",
    "rl.step",
    "iteration",
    "global_step",
    "step",
)
"""Span attributes that hold the number of the step, the first of them that there is."""


LONGEST: Final = 256
"""Characters of a metric's name that is looked at. OpenTelemetry allows 255; what is remembered must not grow large."""


def metric(name: str) -> Told | None:
    """Return what a metric of this name tells; None when it tells nothing of training."""
    return _metric(name) if len(name) <= LONGEST else None


@lru_cache(4096)
def _metric(name: str) -> Told | None:
    if name in SIGNS:
        return Told.SIGN
    words = _WORD.findall(name.lower())
    rest = set(words) - _OF_TRAINING - _OF_COUNTING
    if not rest or any(character.isdigit() for character in name):
        return None
    if rest <= STEPS:
        return Told.STEP
    if rest <= WORK:
        return Told.WORK
    if rest & STEPS and rest & _TIME and rest <= STEPS | _TIME:
        return Told.STEPS_TIMED
    if set(words) & _OF_TRAINING and (rest == {"loss"} or rest == {"grad", "norm"}):
        return Told.SIGN
    return None


class SpanMeaning(NamedTuple):
    """What a span of a name stands for."""

    section: str
    is_step: bool = False
    """It is one step of training: a strong sign."""
    is_job: bool = False
    """It encloses all of training: when it has ended, the process is done."""


_STEP: Final = SpanMeaning(semconv.STEP_SECTION, is_step=True)
_CHECKPOINTING: Final = SpanMeaning(semconv.CHECKPOINTING_SECTION)
_EVALUATION: Final = SpanMeaning(semconv.EVALUATION_SECTIONS[0])
_SETUP: Final = SpanMeaning(semconv.SETUP_SECTION)

SPANS: Final[Mapping[str, SpanMeaning]] = {
    **dict.fromkeys(("megatron.train_step", "nv.dl.training.iteration"), _STEP),
    **dict.fromkeys(("train.step", "train_step", "training.step", "training_step", "step", "iteration"), _STEP),
    **dict.fromkeys(("megatron.save_checkpoint", "nv.dl.training.checkpoint.exposed_save"), _CHECKPOINTING),
    **dict.fromkeys(("megatron.evaluate", "nv.dl.training.evaluate"), _EVALUATION),
    **dict.fromkeys(("nv.dl.training.startup", "rl.startup"), _SETUP),
    "megatron.pretrain": SpanMeaning("pretrain", is_job=True),
}
"""Span name -> what it stands for. Any other span is a section under its own name, less who it is from."""
RL_SPANS: Final[Mapping[str, SpanMeaning]] = {
    "step": _STEP,
    "checkpointing": _CHECKPOINTING,
    "save_checkpoint": _CHECKPOINTING,
    "evaluate": _EVALUATION,
    "job": SpanMeaning("job", is_job=True),
}
"""The same for NeMo-RL, which names its spans ``rl.ALGORITHM.PHASE``."""
_EMITTERS: Final = ("megatron.", "nv.dl.training.", "nv.mcore.", "nv.mlm.")
_RL: Final = re.compile(r"rl\.[a-z0-9_]+\.([a-z0-9_.]+)")


@lru_cache(4096)
def span(name: str) -> SpanMeaning:
    """Return what a span of this name stands for."""
    if (known := SPANS.get(name)) is not None:
        return known
    if (of_rl := _RL.fullmatch(name)) is not None:
        phase = of_rl[1]
        return RL_SPANS.get(phase) or SpanMeaning(phase)
    for emitter in _EMITTERS:
        if name.startswith(emitter) and len(name) > len(emitter):
            return SpanMeaning(name.removeprefix(emitter))
    return SpanMeaning(name)
