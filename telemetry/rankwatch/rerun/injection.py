"""Errors on purpose, to rehearse each verdict: a correct result, a transient error, a persistent error.

No number is changed: a result is rejected as if it had been wrong, and re-runs are said to differ, or not, as the class
demands. Whether a process runs on another device is not pretended; an injected persistent error on the same device
leads to another resume, as a real one does.
"""

from __future__ import annotations

import logging
import random
from typing import Any

from rankwatch.rerun.comparison import MATCH, MISMATCH
from rankwatch.rerun.verdicts import RerunDiagnostic, RerunState

_log = logging.getLogger("rankwatch")


class RerunErrorInjector:
    """Rejects results on purpose: at a rate, or once at a rank and step.

    Args:
        error_injection_rate: one of so many validations is rejected, at random; 0: none.
        error_injection_type: which verdict the re-runs lead to; a :class:`RerunDiagnostic` or its value.
        at: ``(rank, step)`` at which a result is rejected, once in a process.
        seed: of the random numbers, which are this object's own and disturb no training.

    Raises:
        ValueError: the type is none of the three, or the rate is negative.
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
            raise ValueError(f"error_injection_rate is one of how many validations; {error_injection_rate} is negative")
        self.error_injection_rate = error_injection_rate
        self.at = at
        self.injected_error_type: RerunDiagnostic | None = None
        """The class of the error that re-runs have to play, None while there is none."""
        self._struck = False
        self._random = random.Random(seed)

    @classmethod
    def parse(cls, text: str) -> RerunErrorInjector:
        """An injector from text, for a script's flag: ``persistent_error,rank=1,step=4``, ``transient_error,rate=99``.

        Raises:
            ValueError: it cannot be read.
        """
        kind, *parts = [part.strip() for part in text.split(",")]
        try:
            given = {name.strip(): int(value) for name, value in (part.split("=") for part in parts)}
        except ValueError:
            raise ValueError(
                f"{text!r}: after the class come rank=, step=, rate= and seed= with whole numbers"
            ) from None
        if unknown := given.keys() - {"rank", "step", "rate", "seed"}:
            raise ValueError(f"{text!r}: {min(unknown)} means nothing here; rank, step, rate and seed do")
        if ("rank" in given) != ("step" in given):
            raise ValueError(f"{text!r}: rank and step go together")
        at = (given["rank"], given["step"]) if "rank" in given else None
        return cls(given.get("rate", 0), kind, at=at, seed=given.get("seed"))

    def maybe_inject(self, rank: int, step: int) -> bool:
        """Whether the result that is validated now is to be rejected."""
        if self.injected_error_type is not None:
            return False
        here = self.at == (rank, step) and not self._struck
        if not here and not (self.error_injection_rate and self._random.randrange(self.error_injection_rate) == 0):
            return False
        self._struck = self._struck or here
        self.injected_error_type = self.error_injection_type
        _log.warning(
            "injecting an error on purpose: rank %d rejects a result in step %d (%s)",
            rank,
            step,
            self.error_injection_type.value,
        )
        return True

    def pretended(self, state: RerunState) -> float | None:
        """The difference that a re-run is said to show; None: nothing was injected, and the real one counts."""
        kind = self.injected_error_type
        if kind is None:
            return None
        if state is RerunState.RERUNNING_IN_PLACE:
            differs = kind is RerunDiagnostic.TRANSIENT_ERROR
        else:
            differs = kind is RerunDiagnostic.PERSISTENT_ERROR
        return MISMATCH if differs else MATCH

    def settled(self) -> None:
        """The injected error has led to its last verdict."""
        self.injected_error_type = None

    def state_dict(self) -> dict[str, Any]:
        """What has to outlive the process: the class that a later re-run has to play."""
        kind = self.injected_error_type
        return {"injected_error_type": None if kind is None else kind.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what another process began."""
        kind = state["injected_error_type"]
        self.injected_error_type = None if kind is None else RerunDiagnostic(kind)


def _diagnostic(value: RerunDiagnostic | str) -> RerunDiagnostic:
    try:
        return RerunDiagnostic(value)
    except ValueError:
        kinds = ", ".join(each.value for each in RerunDiagnostic)
        raise ValueError(f"{value!r} is no class of error; there are {kinds}") from None
