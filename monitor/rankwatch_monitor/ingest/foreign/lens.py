"""Tables of names: what the metrics and spans of other OpenTelemetry emitters mean for training progress.

NVIDIA's NeMo Lens, as used by Megatron-LM, Megatron-Bridge and NeMo-RL, and scripts with metrics of their own do not
follow Rankwatch's conventions. But some of their names show that training makes progress, which step it has reached and
which section it is in. A name means the same wherever it comes from, so this module holds tables, and functions of a
name alone; the state per process is in :mod:`.lens_progress`.

A sign of progress is *strong* when it comes with every step, or every few steps, as long as training goes on, so that
its absence means a hang. A weak one, such as a loss or a saved checkpoint, proves progress when it comes, and means
nothing when it does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from rankwatch.contract import semconv


class Sign(StrEnum):
    """What a metric means for training progress."""

    STEP = "step"
    """Its value is the number of the last step, or of steps so far. Strong."""
    STEPS_TIMED = "steps timed"
    """A histogram with one duration for each step, or for each of the emitter's log intervals. Strong."""
    WORK = "work"
    """A count of what training consumes: tokens, samples. Strong."""
    WEAK = "weak"
    """It changes as training goes on. Weak."""


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
"""Words for a step; ``global_step`` is split into two."""
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
"""Allowed qualifiers. ``inference.steps``, ``eval.step`` and ``skipped_iterations`` mean something else."""
_OF_COUNTING: Final = frozenset(
    {"total", "count", "current", "last", "completed", "number", "processed", "consumed", "seen"}
)
_WORD: Final = re.compile(r"[a-z]+")

SECONDS: Final[Mapping[str, float]] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0}
"""Units of durations (UCUM)."""
_WORDS_OF_TIME: Final[Mapping[str, float]] = {
    **SECONDS,
    "seconds": 1.0,
    "milliseconds": 1e-3,
    "microseconds": 1e-6,
    "nanoseconds": 1e-9,
}

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
"""Span attributes that hold the step number, in order of precedence."""


LONGEST: Final = 256
"""Characters of a metric name; OpenTelemetry allows 255. Bounds the cache."""


def metric(name: str) -> Sign | None:
    """The meaning of a metric; None if it does not concern training progress."""
    return _metric(name) if len(name) <= LONGEST else None


@lru_cache(4096)
def _metric(name: str) -> Sign | None:
    if name in SIGNS:
        return Sign.WEAK
    words = _WORD.findall(name.lower())
    rest = set(words) - _OF_TRAINING - _OF_COUNTING
    if not rest or any(character.isdigit() for character in name):
        return None
    if rest <= STEPS:
        return Sign.STEP
    if rest <= WORK:
        return Sign.WORK
    if rest & STEPS and rest & _TIME and rest <= STEPS | _TIME:
        return Sign.STEPS_TIMED
    if set(words) & _OF_TRAINING and (rest == {"loss"} or rest == {"grad", "norm"}):
        return Sign.WEAK
    return None


def seconds_of(name: str, unit: str) -> float:
    """Seconds of one unit of a duration, by its unit, else by the last word of its name: ``step_duration_ms``."""
    if (known := _WORDS_OF_TIME.get(unit)) is not None:
        return known
    words = _WORD.findall(name.lower())
    return _WORDS_OF_TIME.get(words[-1] if words else "", 1.0)


class SpanMeaning(NamedTuple):
    """The meaning of a span."""

    section: str
    is_step: bool = False
    """It is one step of training: a strong sign."""
    is_job: bool = False
    """It encloses all of training; when it ends, the process has finished."""


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
"""By span name. Any other span is a section with its own name, without the emitter's prefix."""
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
    """The meaning of a span."""
    if (known := SPANS.get(name)) is not None:
        return known
    if (of_rl := _RL.fullmatch(name)) is not None:
        phase = of_rl[1]
        return RL_SPANS.get(phase) or SpanMeaning(phase)
    for emitter in _EMITTERS:
        if name.startswith(emitter) and len(name) > len(emitter):
            return SpanMeaning(name.removeprefix(emitter))
    return SpanMeaning(name)
