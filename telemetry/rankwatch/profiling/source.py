"""What a source of kernel timings is, and the trace of one sampled step that it gives.

A source is started and stopped by the training thread, at the entries of two steps, and must be quick there. What it
recorded is read on the exporter's thread. All times of a trace are nanoseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

MAX_KERNEL_NAME: Final = 128
"""Characters of a kernel's name together with its shape."""
MAX_EVENTS: Final = 50_000
"""Of one sampled step; a step with more is marked as truncated, and its parts are unknown."""

CUPTI: Final = "cupti"
KINETO_CUDA: Final = "kineto-cuda"
KINETO_CPU: Final = "kineto-cpu"
NO_SOURCE: Final = "none"

Interval = tuple[int, int]
"""Beginning and end."""

Span = tuple[str, int, int]
"""A section: its name, beginning and end."""


class SourceUnavailable(Exception):  # noqa: N818 - a state of affairs, not a failure
    """This source cannot be used here; the message says why, and what to do."""


class SourceBusy(Exception):  # noqa: N818 - as above
    """Another profiler runs, the user's for instance: this window is skipped, the next may be possible."""


class Kernel(NamedTuple):
    """One kernel on a device; where there is none, one operator."""

    key: str
    """Its name with launch or input shapes; empty: not reported, only its time counts."""
    start_ns: int
    end_ns: int
    self_ns: int
    """Its time without the operators nested in it; on a device, all of it."""
    name: str = ""
    """Where there is no key, what it is called, for who looks at a trace."""


class Collective(NamedTuple):
    """One collective, from when it was enqueued (on a device: began) to its completion."""

    group: str
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What one sampled step did."""

    kernels: Sequence[Kernel] = ()
    collectives: Sequence[Collective] = ()
    data: Sequence[Interval] = ()
    """Fetches of data loaders."""
    waits: Sequence[Interval] = ()
    """Calls into collectives on the host: no operator around one computes while it waits there."""
    truncated: int = 0
    """Events that were left out, because there were too many or the source lost them."""
    on_device: bool = False
    """The kernels ran on a device, so beside whatever the host did meanwhile."""


class Sample(NamedTuple):
    """What one sampled step did."""

    iteration: int
    step: Interval
    monotonic: Interval
    trace: Trace
    cost_ns: int
    """What it took altogether, on both threads."""


class Source(Protocol):
    """One way to time kernels. What cannot be done raises; the sampler counts that and goes on without."""

    @property
    def name(self) -> str:
        """The word for it in ``rankwatch.kernel.source``."""

    def start(self) -> None:
        """Begin to record; on the training thread.

        Raises:
            SourceBusy: another profiler runs.
        """

    def stop(self) -> Any:
        """End the recording and return it as it is; on the thread that started it.

        Raises:
            SourceBusy: it cannot be ended where this thread is now; it goes on. Never so between two steps.
        """

    def read(self, raw: Any, limit: int) -> Trace:
        """Make a trace of at most ``limit`` events of a recording; on the exporter's thread."""

    def close(self) -> None:
        """Release everything; no recording runs. On the exporter thread."""
