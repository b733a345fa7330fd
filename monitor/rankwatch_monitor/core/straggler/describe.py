"""The sentence that is said of a straggler: the same one in log, API, page, report and incident. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rankwatch.contract.enums import Cause
from rankwatch.contract.policy import Policy
from rankwatch_monitor.core.events import DeviceReading
from rankwatch_monitor.core.straggler.scores import Scores

CAUSE_WORDS: Mapping[Cause, str] = {
    Cause.DATA: "its input",
    Cause.HOST: "its host side (Python, launches, a CPU it does not get)",
    Cause.COMPUTE: "its computation",
}


class Seen(NamedTuple):
    """What is known of a straggler; seconds of one step."""

    rank: int
    host: str
    others: int
    """Ranks that wait for it."""
    late: float
    step: float
    cause: Cause
    own: float | None = None
    """What it spends on the cause."""
    peers: float | None = None
    """What its peers spend on it."""
    section: str | None = None
    """The section in which most of it is, where there is one."""
    cpu_waited: float | None = None
    device: DeviceReading | None = None
    hosts_ranks: int = 0
    """Other ranks of its host that are slow too."""


def sentence(seen: Seen) -> str:
    """Who makes how many wait, for how long, and with what."""
    share = 100 * seen.late / seen.step
    waits = "the other rank waits" if seen.others == 1 else f"{seen.others} ranks wait"
    said = f"{_where(seen.rank, seen.host)} is slow: {waits} {seconds(seen.late)} of each {seconds(seen.step)} step "
    said += f"for it ({share:.0f} %); {_because(seen)}"
    return said + _beside(seen) + "."


def _because(seen: Seen) -> str:
    if seen.cause not in CAUSE_WORDS:
        inside = f", most of it in section {seen.section!r}" if seen.section else ""
        return f"nothing that was measured explains most of it{inside}"
    words = f"{CAUSE_WORDS[seen.cause]} takes {seconds(seen.own or 0.0)}"
    words += f", {seconds(seen.peers or 0.0)} on its peers"
    return words + (f" (section {seen.section!r})" if seen.section else "")


def _beside(seen: Seen) -> str:
    said = ""
    if seen.cause is Cause.HOST and seen.cpu_waited is not None and seen.cpu_waited > 0.3 * seen.late:
        said += f"; its thread waited {seconds(seen.cpu_waited)} a step for a CPU"
    if seen.device is not None and seen.device.throttled and seen.cause is Cause.COMPUTE:
        said += f"; its GPU is throttled ({', '.join(seen.device.throttled)})"
    if seen.hosts_ranks:
        said += f"; {seen.hosts_ranks} more {'rank' if seen.hosts_ranks == 1 else 'ranks'} of this host are slow too"
    return said


def seconds(value: float) -> str:
    """``1.20 s``, ``312 ms``, ``4.5 ms``."""
    if value >= 0.9995:
        return f"{value:.2f} s"
    return f"{1000 * value:.0f} ms" if value >= 0.00995 else f"{1000 * value:.1f} ms"


def below_words(policy: Policy, scores: Scores, rank: int, host: str) -> str:
    """Which scores of a rank are below the policy's thresholds, by the fastest reference."""
    limits = {"relative": policy.relative_threshold, "individual": policy.individual_threshold}
    told = [
        ("relative", "GPU score", float(scores.gpu_relative_R[rank])),
        ("individual", "GPU score", float(scores.gpu_individual_R[rank])),
    ]
    for name, s in scores.judged.items():
        told.append(("relative", f"score of section {name!r}", float(scores.section_relative_RS[rank, s])))
        told.append(("individual", f"score of section {name!r}", float(scores.section_individual_RS[rank, s])))
    below = [
        f"its {kind} {what} {value:.2f} is below {limits[kind]:g}" for kind, what, value in told if value < limits[kind]
    ]
    return f"{_where(rank, host)} is slow by the fastest reference: {'; '.join(below[:3])}."


def kernel_words(rank: int, host: str, score: float) -> str:
    """What is said when only kernels are known: nobody knows who waits."""
    return f"{_where(rank, host)} is slow: its kernels run at {score:.2f} of the speed of its peers."


def _where(rank: int, host: str) -> str:
    return f"Rank {rank}" + (f" on {host}" if host else "")
