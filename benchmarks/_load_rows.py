"""Requests of many senders at once: one encoded request as a row of bytes, copied and written over by numpy.

How this works
--------------
Senders whose identities take equally many bytes share a *row*: the encoded reports of one of them, one behind the
other (encoded requests in a row are the encoding of one request that holds what they hold). To make the requests of m
senders the row is copied m times, and identity, times and values are stored into fixed columns of it. That takes some
microseconds a request where encoding takes a millisecond.

Legend: M senders in the batch, K ranks of one request, F values of one rank, L bytes of a row, _8 bytes of a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import _load_layout as layout
import _load_report
import numpy as np
import numpy.typing as npt
from _load_report import Kind, Pace

from rankwatch.contract import semconv
from rankwatch.contract.enums import Part
from rankwatch.export.resource import AttributeValue

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

TEXTS: Final = (
    semconv.HOST_NAME,
    semconv.SERVICE_INSTANCE_ID,
    semconv.HW_ID,
    semconv.JOB_ID,
    semconv.PROCESS_START_TIME,
)
NUMBERS: Final = (
    semconv.PROCESS_PID,
    semconv.ATTEMPT,
    semconv.RANK,
    semconv.LOCAL_RANK,
    "dl.data_parallel.rank",
    "dl.tensor_parallel.rank",
)
IDENTITY: Final = (*TEXTS, *NUMBERS)
"""Attributes in which ranks differ; all others stand in the row as they are."""

AGES: Final = (
    (semconv.HEARTBEAT_AGE.name, ()),
    (semconv.PROGRESS_AGE.name, ()),
    (semconv.SECTION_OPEN_DURATION.name, (semconv.STEP_SECTION,)),
    (semconv.SECTION_OPEN_DURATION.name, (_load_report.OPEN_SECTION,)),
    (semconv.FIRST_ITERATION_AGE.name, ()),
)
COUNTS: Final = (
    semconv.ITERATION.name,
    semconv.PROGRESS.name,
    semconv.HEARTBEATS.name,
    semconv.FIRST_ITERATION.name,
    semconv.WINDOW_ITERATION.name,
)
FOLLOWS: Final = {"forward": "forward", "backward": "forward", str(Part.COMPUTE): str(Part.COMPUTE)} | {
    str(Part.COMMUNICATION): str(Part.COMPUTE)
}
"""What of a window moves with a rank's own work, and by whose length. All ranks' steps take equally long, since who is
early waits: what waits for the others (backward, communication) becomes shorter where the rest becomes longer."""
SHORTENED: Final = ("backward", str(Part.COMMUNICATION))


def identity_bytes(attributes: Mapping[str, AttributeValue]) -> bytes:
    """What of a rank's attributes is written into its part of a row."""
    texts = b"".join(str(attributes[name]).encode() for name in TEXTS)
    return texts + b"".join(layout.varint(int(attributes[name])) for name in NUMBERS)


def signature(attributes: Mapping[str, AttributeValue]) -> tuple[int, ...]:
    """How many bytes each part of the identity takes; ranks of the same signature share a row."""
    return tuple(len(str(attributes[name]).encode()) for name in TEXTS) + tuple(
        len(layout.varint(int(attributes[name]))) for name in NUMBERS
    )


class Row:
    """The request of one sender as a pattern for those of many.

    Args:
        ranks: resource attributes of each rank of the request.
        pace: how fast the job trains.
        kind: what each report holds.
    """

    def __init__(self, ranks: Sequence[Mapping[str, AttributeValue]], pace: Pace, kind: Kind) -> None:
        made: dict[tuple[int, ...], tuple[bytes, layout.Layout]] = {}
        bodies, shifted, at = [], [], 0
        for attributes in ranks:
            key = signature(attributes)
            if key not in made:
                body = _load_report.encoded(attributes, pace, kind)
                made[key] = body, layout.find(body)
            bodies.append(made[key][0])
            shifted.append((at, made[key][1]))
            at += len(made[key][0])
        self.ranks = len(ranks)
        self.bytes_L: Bytes = np.frombuffer(b"".join(bodies), np.uint8)
        self._reports = shifted
        self.identity_at = np.array(
            [
                start + at
                for start, found in shifted
                for name in IDENTITY
                for at in range(found.identity[name].at, sum(found.identity[name]))
            ]
        )

    def filled(
        self,
        identity_M: Bytes,
        now_ns: int,
        before_ns_M: npt.NDArray[np.int64],
        ages_MKF: npt.NDArray[np.float64],
        counts_MKF: npt.NDArray[np.int64],
        factor_MK: npt.NDArray[np.float64],
    ) -> Bytes:
        """The requests of M senders, each a row of the result.

        Args:
            identity_M: the :func:`identity_bytes` of the ranks of each sender.
            now_ns: the time of all points.
            before_ns_M: the time of each sender's last report, from which its delta points count.
            ages_MKF: seconds, in the order of :data:`AGES`.
            counts_MKF: in the order of :data:`COUNTS`.
            factor_MK: by how much longer than usual each rank's own work took in its window.
        """
        m = len(identity_M)
        rows_ML = np.tile(self.bytes_L, (m, 1))
        rows_ML[:, self.identity_at] = identity_M
        rows_ML[:, self._times] = np.frombuffer(now_ns.to_bytes(8, "little"), np.uint8)
        if len(self._starts):
            rows_ML[:, self._starts] = _as_bytes(before_ns_M)[:, None, :]
        rows_ML[:, self._ages] = _as_bytes(ages_MKF).reshape(m, -1, 8)
        place, which = self._counts
        rows_ML[:, place] = _as_bytes(counts_MKF.reshape(m, -1)[:, which])
        place, rank, base, slope = self._own_work
        if len(place):
            rows_ML[:, place] = _as_bytes(base + slope * (factor_MK[:, rank] - 1.0))
        return rows_ML

    @cached_property
    def _times(self) -> Places:
        return self._eight([start + at for start, found in self._reports for at in found.times])

    @cached_property
    def _starts(self) -> Places:
        return self._eight([start + at for start, found in self._reports for at in found.starts])

    @cached_property
    def _ages(self) -> Places:
        return self._eight([self._place(i, *age) for i in range(len(self._reports)) for age in AGES])

    @cached_property
    def _counts(self) -> tuple[Places, Places]:
        """Places of the counts that are reported in this kind, and which of a sender's counts each is."""
        reported = [
            (start + value.at, rank * len(COUNTS) + COUNTS.index(value.metric))
            for rank, (start, found) in enumerate(self._reports)
            for value in found.values
            if value.metric in COUNTS
        ]
        return self._eight([at for at, _ in reported]), np.array([which for _, which in reported])

    @cached_property
    def _own_work(self) -> tuple[Places, Places, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Places of what moves with a rank's own work, whose rank it is of, what it is usually, and by how much."""
        reported = []
        for rank, (start, found) in enumerate(self._reports):
            usual = {(v.metric, v.labels): self._double(start + v.at) for v in found.values}
            for value in found.values:
                here = usual[value.metric, value.labels]
                name = next((label for label in value.labels if label in FOLLOWS), "")
                if value.metric == semconv.KERNEL_DURATION.name:
                    reported.append((start + value.at, rank, here, here))
                elif name and value.metric in (semconv.WINDOW_SECTION_DURATION.name, semconv.STEP_PART.name):
                    labels = tuple(FOLLOWS.get(label, label) for label in value.labels)
                    moved = usual[value.metric, labels]
                    reported.append((start + value.at, rank, here, -moved if name in SHORTENED else moved))
        at, rank_of, base, slope = zip(*reported, strict=True) if reported else ((), (), (), ())
        return self._eight(at), np.array(rank_of, np.int64), np.array(base), np.array(slope)

    def _double(self, at: int) -> float:
        return float(self.bytes_L[at : at + 8].copy().view(np.float64)[0])

    def _place(self, rank: int, metric: str, labels: tuple[str, ...]) -> int:
        start, found = self._reports[rank]
        return next(start + value.at for value in found.values if (value.metric, value.labels) == (metric, labels))

    def _eight(self, places: Sequence[int]) -> Places:
        """The columns of the eight bytes at each place."""
        return np.array(places, np.int64).reshape(-1, 1) + np.arange(8)


def _as_bytes(values: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> Bytes:
    """Each value as its eight bytes, in a further axis."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, 8)
