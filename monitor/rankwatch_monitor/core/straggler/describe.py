"""Describes a straggler as of one window: how late it is, with what, where, and in which sentence. Pure.

Log, API, page, report and incident show the same sentence. Shapes: R ranks, S sections, P parts of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from rankwatch.cli.formatting import whole_percent
from rankwatch.contract.enums import Cause, ScoreReference
from rankwatch.contract.policy import Policy
from rankwatch.contract.semconv import DATA_SECTIONS, STEP_SECTION
from rankwatch_monitor.core.events import DeviceReading, throttle_words
from rankwatch_monitor.core.ranks import Floats
from rankwatch_monitor.core.straggler import lateness
from rankwatch_monitor.core.straggler.findings import Straggler, digits_of, share_of, subject, waits
from rankwatch_monitor.core.straggler.scores import Scores
from rankwatch_monitor.core.straggler.state import Description, Performance
from rankwatch_monitor.core.straggler.window import Window

CHANGED_MUCH: Final = 1.5
"""Factor by which a share must change for that to be logged, and for the sentence of a finding to be replaced."""
RESTATED: Final = 1.03
"""Factor by which the stated share must differ from that of the last windows for a straggler's sentence and figures to
be replaced, all of them at once. Sentences are labels of metrics: with each window's own every window would be a new
series."""
SLOW_KERNELS: Final = 0.9
"""GPU score below which slow kernels are mentioned where they are not the cause."""
CPU_WAIT: Final = 0.3
"""Fraction of the lateness above which waiting for a CPU is mentioned."""
Explained = tuple[Cause, float | None, float | None]
"""The cause, and the seconds of a step that the rank and its peers spend on it."""
CAUSE_WORDS: Mapping[Cause, str] = {
    Cause.DATA: "its input",
    Cause.HOST: "its host side (Python, kernel launches, waiting for a CPU)",
    Cause.COMPUTE: "its computation",
}


def describe(
    performance: Performance,
    policy: Policy,
    window: Window,
    straggler: Straggler,
    slow_on_host: int,
    usual: float | None = None,
    *,
    whole: bool = False,
) -> Description:
    """Describe a straggler as of one window.

    Args:
        straggler: its rank, host, reference, and the cause known so far.
        slow_on_host: how many ranks of its host are slow, itself included.
        usual: what it costs on average, where it is slow in some windows only.
        whole: its node is slow as a whole: peers on it are no measure.
    """
    scores, rank, late = performance.scores, straggler.rank, window.late
    assert scores is not None
    section = _section_of(performance.sections.names, window, rank)
    step = float(window.step_R[rank] if np.isnan(late.step_R[rank]) else late.step_R[rank])
    share = float(window.lost_R[rank]) if usual is None else usual
    seconds, fastest = share * step, straggler.reference is ScoreReference.FASTEST
    if not np.isnan(late.late_R[rank]):
        excess_P = _beyond_node(performance, window, rank) if whole else late.excess_RP[rank]
        cause, own, peers = _by_parts(window, rank, excess_P, seconds)
    elif section is not None:
        cause, own, peers = _by_section(window, rank, section, performance.sections.names.index(section))
    else:
        kernels = not np.isnan(scores.gpu_robust_R[rank]) or fastest
        cause, own, peers = Cause.COMPUTE if kernels else straggler.cause, None, None
    score_R = scores.gpu_relative_R if fastest else scores.gpu_robust_R
    score = _known(score_R[rank])
    known, others = not np.isnan(seconds), int(window.fresh_R.sum()) - 1
    seen = Observation(
        rank,
        straggler.host,
        others,
        late=seconds,
        step=step,
        cause=cause,
        own=own,
        peers=peers,
        section=section,
        score=score,
        computation=_known(late.excess_RP[rank, lateness.COMPUTE]),
        cpu_waited=_known(performance.cpu_waited_R[rank]),
        device=performance.readings.get(rank),
        others_on_host=max(0, slow_on_host - 1),
        always=straggler.always,
        often=straggler.often,
    )
    reason = below_thresholds(policy, scores, rank, straggler.host) if fastest else sentence(seen)
    if not (known and seconds > 0):  # by the fastest reference a rank that waits for others may be called slow too
        return Description(cause, score, None, None, reason, section)
    return Description(cause, score, seconds, share, reason, section, own, peers, others)


def _by_parts(window: Window, rank: int, excess_P: Floats, seconds: float) -> Explained:
    """By the parts of the step, where one explains most of the ``seconds``."""
    cause = lateness.cause_of(excess_P, max(seconds, float(window.late.late_R[rank])))
    if cause is Cause.UNEXPLAINED:
        return cause, None, None
    part = lateness.CAUSES.index(cause)
    own = float(window.parts_RP[rank, part])
    return cause, own, own - float(excess_P[part])


def _by_section(window: Window, rank: int, section: str, column: int) -> Explained:
    own = float(window.section_RS[rank, column])
    cause = Cause.DATA if section in DATA_SECTIONS else Cause.UNEXPLAINED
    return cause, own, own - float(window.section_excess_RS[rank, column])


def _beyond_node(performance: Performance, window: Window, rank: int) -> Floats:
    """Seconds of each part of a rank's work beyond those of its stage on other nodes, or of all other nodes."""
    node_R, stage_R = performance.node_R[: len(window.fresh_R)], window.pipeline.stage_R
    own_RP = window.parts_RP[:, list(lateness.OWN)]
    elsewhere_R = (node_R != node_R[rank]) & ~np.isnan(own_RP[:, 0])
    if (alike_R := elsewhere_R & (stage_R == stage_R[rank])).any():
        elsewhere_R = alike_R
    found_P: Floats = own_RP[rank] - np.median(own_RP[elsewhere_R], axis=0)
    return found_P


def changed_much(before: float | None, now: float | None) -> bool:
    """Whether a share has changed so much that it is news."""
    if not before or not now or before <= 0 or now <= 0:
        return False
    return max(now / before, before / now) > CHANGED_MUCH


def is_outdated(straggler: Straggler, seen: Description, usual: float) -> bool:
    """Whether what is stated of a straggler is replaced by what the newest window shows.

    Args:
        usual: its median share of the step in the last windows; of a window that is further from it nothing is stated.
    """
    if seen.cause is not straggler.cause or (seen.share is None) is not (straggler.share is None):
        return True
    if not straggler.share or not seen.share or not usual > 0:
        return False
    stated, newest = (max(share / usual, usual / share) for share in (straggler.share, seen.share))
    return stated > RESTATED and newest < stated


def _section_of(names: list[str], window: Window, rank: int) -> str | None:
    """The section that holds more than half of a rank's excess, where one does."""
    excess_S = window.section_excess_RS[rank]
    if not len(names) or np.isnan(excess_S).all():
        return None
    most = int(np.nanargmax(excess_S))
    late = window.late.late_R[rank]
    return names[most] if np.isnan(late) or excess_S[most] > lateness.EXPLAINS * late else None


def _known(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)


# Sentences ------------------------------------------------------------------------------------------------------------


class Observation(NamedTuple):
    """What the sentence about a late rank is made from; seconds of one step."""

    rank: int
    host: str
    others: int
    """Ranks that wait for it."""
    late: float
    step: float
    cause: Cause
    own: float | None = None
    """Seconds it spends on the cause."""
    peers: float | None = None
    """Seconds its peers spend on it."""
    section: str | None = None
    """The section that holds most of it."""
    score: float | None = None
    """GPU score."""
    computation: float | None = None
    """Seconds of its computation beyond its peers'."""
    cpu_waited: float | None = None
    device: DeviceReading | None = None
    others_on_host: int = 0
    """Other ranks of its host that are slow too."""
    always: bool = False
    """It was slow from the first windows of its attempt."""
    often: float | None = None
    """The part of the steps in which it is slow, where that is not most of them; ``late`` is of all."""


def sentence(seen: Observation) -> str:
    """Which rank makes how many wait, for how long, and with what, as far as that is known."""
    if seen.section == STEP_SECTION:
        return slow_steps(seen.rank, seen.host, seen.own or 0.0, seen.peers or 0.0)
    if np.isnan(seen.late):
        return slow_kernels(seen.rank, seen.host, seen.score or 0.0)
    share = share_of(seen.late, seen.step)
    rarely = "" if seen.often is None else f" in 1 of {max(2, round(1 / seen.often))} steps"
    text = f"{subject(seen.rank, seen.host)} is slow{rarely}: {waits(seen.others)} {seconds(seen.late)} of each "
    text += f"{seconds(seen.step)} step for it ({whole_percent(share)}); {_cause(seen)}"
    return text + _besides(seen) + "."


def _cause(seen: Observation) -> str:
    if seen.cause not in CAUSE_WORDS:
        inside = f", most of it in section {seen.section!r}" if seen.section else ""
        return f"nothing that was measured explains most of it{inside}"
    words = f"{CAUSE_WORDS[seen.cause]} takes {seconds(seen.own or 0.0)}"
    words += f", {seconds(seen.peers or 0.0)} on its peers"
    return words + (f" (section {seen.section!r})" if seen.section else "")


def _besides(seen: Observation) -> str:
    text = ""
    if (
        seen.cause in (Cause.HOST, Cause.COMPUTE)
        and seen.cpu_waited is not None
        and seen.cpu_waited > CPU_WAIT * seen.late
    ):
        text += f"; its thread waited {seconds(seen.cpu_waited)} a step for a CPU"
    if seen.cause in (Cause.DATA, Cause.HOST) and seen.score is not None and seen.score < SLOW_KERNELS:
        of_it = "none" if not seen.computation or seen.computation < 0.0005 else f"only {seconds(seen.computation)}"
        text += f"; its kernels are slower than its peers' too (GPU score {seen.score:.2f}), but explain {of_it} of it"
    if seen.device is not None and seen.device.throttled and seen.cause is Cause.COMPUTE:
        text += f"; its GPU is throttled ({', '.join(map(throttle_words, seen.device.throttled))})"
    if seen.always:
        text += "; it has been slow since the first steps of this attempt"
    if seen.others_on_host:
        ranks = "rank" if seen.others_on_host == 1 else "ranks"
        text += f"; {seen.others_on_host} more {ranks} of this host are slow too"
    return text


def seconds(value: float) -> str:
    """``1.20 s``, ``312 ms``, ``4.5 ms``."""
    digits = digits_of(value)
    return f"{value:.2f} s" if digits == 2 else f"{1000 * value:.{digits - 3}f} ms"


def below_thresholds(policy: Policy, scores: Scores, rank: int, host: str) -> str:
    """Which scores of a rank are below the policy's thresholds, by the fastest reference."""
    limits = {"relative": policy.relative_threshold, "individual": policy.individual_threshold}
    rows = [
        ("relative", "GPU score", float(scores.gpu_relative_R[rank])),
        ("individual", "GPU score", float(scores.gpu_individual_R[rank])),
    ]
    for name, s in scores.judged.items():
        rows.append(("relative", f"score of section {name!r}", float(scores.section_relative_RS[rank, s])))
        rows.append(("individual", f"score of section {name!r}", float(scores.section_individual_RS[rank, s])))
    below = [
        f"its {kind} {what} {value:.2f} is below {limits[kind]:g}" for kind, what, value in rows if value < limits[kind]
    ]
    return f"{subject(rank, host)} is slow by the fastest reference: {'; '.join(below[:3])}."


def slow_steps(rank: int, host: str, own: float, peers: float) -> str:
    """The sentence when only the step times of each rank are known, as of another emitter."""
    return f"{subject(rank, host)} is slow: its steps take {seconds(own)}, {seconds(peers)} on its peers."


def slow_kernels(rank: int, host: str, score: float) -> str:
    """The sentence when only kernels are known: it is unknown which ranks wait."""
    return f"{subject(rank, host)} is slow: its kernels run at {score:.2f} of the speed of its peers."
