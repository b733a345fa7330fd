"""Error injection, to test each verdict: a correct result, a transient error, a persistent error.

No number is changed: a result is rejected as if it were wrong, and the comparison with the re-run is simulated
according to the error type. The device is not simulated: an injected persistent error on the same device leads to
another resume, as a real one does.
"""

from __future__ import annotations

import logging
import random
from typing import Any

from rankwatch.rerun.comparison import MATCH, MISMATCH
from rankwatch.rerun.verdicts import RerunDiagnostic, RerunState

_log = logging.getLogger("rankwatch")


class RerunErrorInjector:
    """Rejects correct results: at a rate, or once at a rank and step.

    Args:
        error_injection_rate: one in this many validations is rejected at random; 0: none.
        error_injection_type: the verdict that results; a :class:`RerunDiagnostic` or its value.
        at: ``(rank, step)`` at which a result is rejected, once per process.
        seed: of the injector's own random generator.

    Raises:
        ValueError: the type is unknown, or the rate is negative.
    """

    def __init__(
        self,
        error_injection_rate: int = 0,
        error_injection_type: RerunDiagnostic | str = RerunDiagnostic.TRANSIENT_ERROR,
        *,
        at: tuple[int, int] | None = None,
        seed: int | None = None,
    ) -> None:
        self.error_injection_type = _diagnostic(error_injection_type)
        if error_injection_rate < 0:
            raise ValueError(f"error_injection_rate must not be negative, but is {error_injection_rate}")
        self.error_injection_rate = error_injection_rate
        self.at = at
        self.injected_error_type: RerunDiagnostic | None = None
        """The error type that re-runs simulate; None while no error is injected."""
        self._injected = False
        self._random = random.Random(seed)

    @classmethod
    def parse(cls, text: str) -> RerunErrorInjector:
        """Parse the value of a command-line flag: ``persistent_error,rank=1,step=4`` or ``transient_error,rate=99``.

        Raises:
            ValueError: the text is malformed.
        """
        kind, *parts = [part.strip() for part in text.split(",")]
        try:
            given = {name.strip(): int(value) for name, value in (part.split("=") for part in parts)}
        except ValueError:
            raise ValueError(
                f"{text!r}: the error type may be followed by rank=, step=, rate= and seed= with whole numbers"
            ) from None
        if unknown := given.keys() - {"rank", "step", "rate", "seed"}:
            raise ValueError(f"{text!r}: unknown key {min(unknown)}; the keys are rank, step, rate and seed")
        if ("rank" in given) != ("step" in given):
            raise ValueError(f"{text!r}: rank and step must be given together")
        at = (given["rank"], given["step"]) if "rank" in given else None
        return cls(given.get("rate", 0), kind, at=at, seed=given.get("seed"))

    def maybe_inject(self, rank: int, step: int) -> bool:
        """Return whether to reject the result that is validated now."""
        if self.injected_error_type is not None:
            return False
        here = self.at == (rank, step) and not self._injected
        if not here and not (self.error_injection_rate and self._random.randrange(self.error_injection_rate) == 0):
            return False
        self._injected = self._injected or here
        self.injected_error_type = self.error_injection_type
        _log.warning(
            "injecting an error: rank %d rejects a result in step %d (%s)",
            rank,
            step,
            self.error_injection_type.value,
        )
        return True

    def simulated_difference(self, state: RerunState) -> float | None:
        """Return the simulated difference of a re-run; None if no error is injected."""
        kind = self.injected_error_type
        if kind is None:
            return None
        if state is RerunState.RERUNNING_IN_PLACE:
            differs = kind is RerunDiagnostic.TRANSIENT_ERROR
        else:
            differs = kind is RerunDiagnostic.PERSISTENT_ERROR
        return MISMATCH if differs else MATCH

    def clear(self) -> None:
        """Clear the injected error after its final verdict."""
        self.injected_error_type = None

    def state_dict(self) -> dict[str, Any]:
        """Return the error type that a re-run after a resume simulates."""
        kind = self.injected_error_type
        return {"injected_error_type": None if kind is None else kind.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the injection of another process."""
        kind = state["injected_error_type"]
        self.injected_error_type = None if kind is None else RerunDiagnostic(kind)


def _diagnostic(value: RerunDiagnostic | str) -> RerunDiagnostic:
    try:
        return RerunDiagnostic(value)
    except ValueError:
        kinds = ", ".join(each.value for each in RerunDiagnostic)
        raise ValueError(f"unknown error type {value!r}; the types are {kinds}") from None
