"""The interface of kernel timing sources, and the trace of one sampled step.

A source is started and stopped by the training thread, at the entries of two steps, and must be quick there. The
recording is read on the exporter thread. All times of a trace are nanoseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

MAX_KERNEL_NAME: Final = 128
"""Characters of a kernel's name together with its shape."""
MAX_EVENTS: Final = 50_000
"""Events of one sampled step; a step with more is marked as truncated, and its parts are unknown."""

CUPTI: Final = "cupti"
KINETO_CUDA: Final = "kineto-cuda"
KINETO_CPU: Final = "kineto-cpu"
NO_SOURCE: Final = "none"

Interval = tuple[int, int]
"""Beginning and end."""

Span = tuple[str, int, int]
"""A section: its name, beginning and end."""


class SourceUnavailable(Exception):  # noqa: N818 - a state of affairs, not a failure
    """This source cannot be used here; the message describes the cause and the remedy."""


class SourceBusy(Exception):  # noqa: N818 - as above
    """Another profiler runs, for instance the user's: this window is skipped, the next may succeed."""


class Kernel(NamedTuple):
    """One kernel on a device; where there is none, one operator."""

    key: str
    """Its name with launch or input shapes; empty: not reported, only its time counts."""
    start_ns: int
    end_ns: int
    self_ns: int
    """Its time without the operators nested in it; on a device, all of it."""
    name: str = ""
    """Shown in a trace if there is no key."""


class Collective(NamedTuple):
    """One collective, from when it was enqueued (on a device: began) to its completion."""

    group: str
    """On a device the stream, as long as the group is not known; empty: not known."""
    name: str
    start_ns: int
    end_ns: int


class Transfer(NamedTuple):
    """What one collective moved."""

    group: str
    operation: str
    """One of :data:`rankwatch.contract.collectives.OPERATIONS`."""
    size: int
    """Bytes, as NCCL's tests count them; 0: unknown, or none."""
    ranks: int
    """Members of the group; 0: unknown."""
    took_ns: int
    """With the wait for members that came later."""


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
    """Events that were dropped, by the limit or by the source."""
    on_device: bool = False
    """Whether the kernels ran on a device, asynchronously to the host."""
    transfers: Sequence[Transfer] = ()
    """What the collectives moved, as far as it is known."""


class Sample(NamedTuple):
    """What one sampled step did."""

    iteration: int
    step: Interval
    monotonic: Interval
    trace: Trace
    cost_ns: int
    """Its total cost on both threads."""


class Source(Protocol):
    """One way to time kernels. Errors are raised; the sampler counts them and skips the window."""

    @property
    def name(self) -> str:
        """Its name in ``rankwatch.kernel.source``."""

    def start(self) -> None:
        """Start recording; on the training thread.

        Raises:
            SourceBusy: another profiler runs.
        """

    def stop(self) -> Any:
        """End the recording and return it unprocessed; on the thread that started it.

        Raises:
            SourceBusy: it cannot be ended at this point, and continues; never between two steps.
        """

    def read(self, raw: Any, limit: int) -> Trace:
        """Convert a recording to a trace of at most ``limit`` events; on the exporter thread."""

    def close(self) -> None:
        """Release everything; no recording runs. On the exporter thread."""
