"""What straggler detection finds, as it is published and stored: single stragglers, and one finding about the job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from rankwatch.cli.formatting import gpu_time, whole_percent
from rankwatch.contract.enums import Action, Cause, ScoreReference, StragglerVerdict

_IN: Final = {Cause.DATA: " in its input", Cause.HOST: " in its host-side work", Cause.COMPUTE: " in its computation"}


@dataclass(slots=True)
class Straggler:
    """A rank that is slow by its own fault, from the first slow window until it is as fast as its peers again.

    Written by ``Performance`` only.
    """

    id: str
    rank: int
    host: str
    device: str
    cause: Cause
    reference: ScoreReference
    """By which it was found."""
    reason: str
    """One sentence; log, API, page, report and incident show the same."""
    since: float
    """Unix seconds at which the first slow window began."""
    seen: float
    """Unix seconds of the last slow window."""
    attempt: int = 0
    always: bool = False
    """It was slow from the first windows of its attempt."""
    ended: float | None = None
    score: float | None = None
    """GPU score by its reference: relative or robust."""
    lateness: float | None = None
    """Seconds of each step for which the other ranks wait."""
    share: float | None = None
    """Lateness as a fraction of the step."""
    waiting: int | None = None
    """Ranks that wait for it."""
    section: str | None = None
    """The section that holds most of what it takes longer for; None: none does."""
    own: float | None = None
    """Seconds of each step it spends on the cause."""
    peers: float | None = None
    """Seconds its peers spend on it: their median."""
    step_before: float | None = None
    step_since: float | None = None
    """Seconds of a step in the minutes before it was slow, and in the last ones since; None: not known."""
    often: float | None = None
    """The part of the windows in which it is slow, where it is not in most of them; lateness and share are of all."""
    cost_gpu_hours: float = 0.0
    action: Action = Action.LOG
    action_reason: str = ""
    """Empty: not decided yet."""

    @property
    def open(self) -> bool:
        """Whether it is still slow."""
        return self.ended is None

    @property
    def stated_share(self) -> float | None:
        """The share as computed from the durations in its sentence, as they are rounded there."""
        if not self.lateness or not self.share:
            return self.share
        return share_of(self.lateness, self.lateness / self.share)

    @property
    def throughput(self) -> float | None:
        """What the job does now, as a part of what it did before this rank was slow; None: not known.

        Measured, where steps have become longer since, by no more than the others wait; else all but that waiting.
        """
        if (share := self.stated_share) is None:
            return None
        if self.step_before and self.step_since:
            measured = self.step_before / self.step_since
            if 1.0 - share < measured < 1.0:
                return measured
        return 1.0 - share

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {**asdict(self), "share": self.stated_share}


def share_of(late: float, step: float) -> float:
    """The share of a step, as computed from the two durations as they are stated."""
    whole = round(step, digits_of(step))
    return round(late, digits_of(late)) / whole if whole else late / step


def digits_of(seconds: float) -> int:
    """Decimals of a duration of a step, as it is stated in seconds or milliseconds."""
    return 2 if seconds >= 0.9995 else 3 if seconds >= 0.00995 else 4


def subject(rank: int, host: str) -> str:
    """``Rank 3 on host-1``."""
    return f"Rank {rank}" + (f" on {host}" if host else "")


def slow_in(cause: Cause) -> str:
    """`` in its input``: in what a rank is slow; empty: that is not known, or not a part of its own work."""
    return _IN.get(cause, "")


def waits(others: int) -> str:
    """``31 ranks wait``, of a job in which so many do."""
    return "the other rank waits" if others == 1 else f"{others} ranks wait"


def cost_rate(straggler: Straggler) -> str:
    """``8.58 GPU-hours each hour: 27 % of each step of all 32 ranks``; empty: how long the others wait is not known."""
    if not (share := straggler.stated_share) or straggler.waiting is None:
        return ""
    ranks = straggler.waiting + 1
    rate = gpu_time(3600.0 * share * ranks)
    return f"{rate} each hour: {whole_percent(share)} of each step of all {ranks} ranks"


@dataclass(slots=True)
class Finding:
    """Why the job as a whole loses time; see ``diagnosis``."""

    verdict: StragglerVerdict = StragglerVerdict.HEALTHY
    cause: Cause = Cause.UNEXPLAINED
    reason: str = ""
    """One sentence; empty while the job is healthy."""
    since: float | None = None
    ranks: tuple[int, ...] = ()
    """The stragglers of a worker verdict, the ranks of a stage, the ranks that are often behind."""
    share: float = 0.0
    """Fraction of the step that is lost."""
    host: str = ""
    """The node all of whose ranks are slow; of a stage the node that may as well be the reason."""
    place: str = ""
    """The label of the rack, switch or NVLink domain that all slow nodes, and few others, are of."""
