"""Values that the training script logs: loss, tokens per second, MFU, learning rate.

:func:`log` adds numbers to sums, at most :data:`MAX_NAMES` names; the exporter takes their means at each report. Rank 0
and the last rank report (with pipeline parallelism only the last stage knows the loss); on all others a call does
nothing. The monitor uses the lowest rank that reports a name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

MAX_NAMES: Final = 32
NAME_LENGTH: Final = 100
"""Characters of a name at most."""
MAX_WARNINGS: Final = 40
DROP_VALUE: Final = "logged_value"
DROP_NAME: Final = "logged_name"

_log = logging.getLogger("rankwatch")


class Logged(NamedTuple):
    """What was logged since the last report."""

    means: Mapping[str, float]
    non_finite: Mapping[str, int]
    """How many values were NaN or infinite since the process started, by name; only names with any."""
    step: int | None
    """The last step that was given."""


NOTHING: Final = Logged({}, {}, None)


class Scalars:
    """The values of one session."""

    def __init__(self, drop: Callable[[str], None]) -> None:
        """``drop`` counts what is left out, by reason."""
        self._drop = drop
        self._sums: dict[str, list[float]] = {}
        """By name, the sum and number of the values since the last report."""
        self._known: set[str] = set()
        self._non_finite: dict[str, int] = {}
        self._step: int | None = None
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def add(self, values: Mapping[str, Any], step: int | None) -> None:
        """Add values; what is no number is left out, with a warning for each name."""
        for name, given in values.items():
            value = given if type(given) is float else self._number(name, given)
            if value is None:
                continue
            if value - value != 0.0:  # NaN, or infinite
                self._note_non_finite(name)
                continue
            # Values that two threads add at the same moment may be lost; a lock would cost more than all the rest.
            if (entry := self._sums.get(name)) is None:
                if not self._registered(name):
                    continue
                entry = self._sums.setdefault(name, [0.0, 0.0])
            entry[0] += value
            entry[1] += 1.0
        if type(step) is int and 0 <= step < 2**62:
            self._step = step

    def take(self) -> Logged:
        """The means since the last call. For the exporter thread."""
        sums, self._sums = self._sums, {}
        means = {name: total / count for name, (total, count) in list(sums.items()) if count}
        return Logged(means, dict(self._non_finite), self._step)

    def refuse(self, error: Exception) -> None:
        """Note a call whose values could not be read at all."""
        self._drop(DROP_VALUE)
        self._warn(
            "", f"rankwatch.log() was called with something that cannot be read: {type(error).__name__}: {error}"
        )

    def _registered(self, name: object) -> bool:
        """Whether this name may be used; registers a new one while there is room."""
        if name in self._known:
            return True
        if type(name) is not str or not 0 < len(name) <= NAME_LENGTH or not name.isprintable():
            self._drop(DROP_NAME)
            self._warn("name", f"a name of rankwatch.log() must be a text of 1 to {NAME_LENGTH} printable characters")
            return False
        with self._lock:
            if len(self._known) < MAX_NAMES:
                self._known.add(name)
                return True
        self._drop(DROP_NAME)
        self._warn(
            "names",
            f"rankwatch.log() keeps {MAX_NAMES} names; {name!r} and further ones are ignored. Names must not contain"
            " step or batch numbers",
        )
        return False

    def _number(self, name: object, given: Any) -> float | None:
        """A value as a number. A tensor on a device is left out: reading it would wait for the device."""
        try:
            if (device := getattr(given, "device", None)) is not None and getattr(device, "type", "cpu") != "cpu":
                problem = (
                    f"a tensor on {device}, and reading it would wait for the device: pass value.item() now and then"
                )
            elif isinstance(given, str | bytes):
                problem = f"a {type(given).__name__}"
            else:
                item = getattr(given, "item", None)
                return float(given if item is None else item())
        except Exception as error:  # noqa: BLE001 - whatever a value's own code raises
            problem = f"a {type(given).__name__} ({type(error).__name__})"
        self._drop(DROP_VALUE)
        self._warn(f"value {name!s:.{NAME_LENGTH}}", f"rankwatch.log() ignores {name!r:.120}: it is {problem}")
        return None

    def _note_non_finite(self, name: object) -> None:
        if self._registered(name):
            self._non_finite[str(name)] = self._non_finite.get(str(name), 0) + 1

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(what)
            _log.warning("%s", message)


_scalars: Scalars | None = None


def attach(scalars: Scalars | None) -> None:
    """Log into ``scalars`` from now on; None: nowhere. For the session only."""
    global _scalars
    _scalars = scalars


def log(values: Mapping[str, Any], step: int | None = None) -> None:
    """Log numbers of the training, such as ``{"loss": 2.1, "tokens_per_second": 1.2e5}``, for the charts of the job.

    Rank 0 and the last rank report means of what was logged since their last report; on other ranks a call does
    nothing. Of a name that both log, the monitor keeps rank 0's. At most 32 names are kept. Numbers of Python and
    numpy and tensors of one element on the CPU are accepted. A tensor on a device is ignored with a warning, since
    reading it would wait for the device. NaN and infinite values are counted and left out of the means. ``step`` is
    used where the script opens no :func:`step`. A call takes about a microsecond and never raises.
    """
    scalars = _scalars
    if scalars is not None:
        try:
            scalars.add(values, step)
        except Exception as error:  # noqa: BLE001 - boundary to training code
            scalars.refuse(error)
