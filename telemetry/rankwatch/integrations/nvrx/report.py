"""NVRx's ``Report``: the scores of all ranks at one time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

RELATIVE: Final = "relative_perf_scores"
INDIVIDUAL: Final = "individual_perf_scores"
LATE: Final = 0.05
"""Fraction of a step; the default of the policy's ``straggler_slowdown``."""
ALL_SCORES: Final = (RELATIVE, INDIVIDUAL)

Scores = Mapping[int, float]
"""By rank: 1 is the best, NaN is unknown."""


class Statistic(Enum):
    """Statistics of durations in milliseconds; NUM is their count."""

    MIN = auto()
    MAX = auto()
    MED = auto()
    AVG = auto()
    STD = auto()
    NUM = auto()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class StragglerId:
    """A rank and its node."""

    rank: int
    node: str


class _Nodes(dict[int, str]):
    """A report's hosts by rank, with the ranks that are not late by :data:`LATE` of a step while another one is.

    A low score of these is a slow sample. It is kept here, since a report has no field that NVRx's has not.
    """

    ranks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Report:
    """The monitor's scores of a rank against the fastest one (relative) or its own best (individual).

    Mappings without data are empty; a rank without a score is NaN.
    """

    gpu_relative_perf_scores: Scores = field(default_factory=dict)
    section_relative_perf_scores: Mapping[str, Scores] = field(default_factory=dict)
    gpu_individual_perf_scores: Scores = field(default_factory=dict)
    section_individual_perf_scores: Mapping[str, Scores] = field(default_factory=dict)
    rank_to_node: Mapping[int, str] = field(default_factory=dict)
    local_section_summaries: Mapping[str, Mapping[Statistic, float]] = field(default_factory=dict)
    local_kernel_summaries: Mapping[str, Mapping[Statistic, float]] = field(default_factory=dict)
    """Always empty: kernel statistics are only in the monitor."""
    generate_report_elapsed_time: float = 0.0
    """Milliseconds."""
    gather_on_rank0: bool = True
    rank: int | None = None

    def identify_stragglers(
        self,
        gpu_rel_threshold: float = 0.75,
        section_rel_threshold: float = 0.75,
        gpu_indiv_threshold: float = 0.75,
        section_indiv_threshold: float = 0.75,
    ) -> dict[str, Any]:
        """Return the ranks with a score strictly below a threshold; none without a score, or that lateness contradicts.

        Keys: ``straggler_gpus_relative`` and ``straggler_gpus_individual``, sets of :class:`StragglerId`, and
        ``straggler_sections_relative`` and ``straggler_sections_individual``, non-empty sets by section.
        """
        return {
            "straggler_gpus_relative": self._below(self.gpu_relative_perf_scores, gpu_rel_threshold),
            "straggler_gpus_individual": self._below(self.gpu_individual_perf_scores, gpu_indiv_threshold),
            "straggler_sections_relative": self._by_section(self.section_relative_perf_scores, section_rel_threshold),
            "straggler_sections_individual": self._by_section(
                self.section_individual_perf_scores, section_indiv_threshold
            ),
        }

    def _below(self, scores: Scores, threshold: float) -> set[StragglerId]:
        nodes = self.rank_to_node
        contradicted = nodes.ranks if isinstance(nodes, _Nodes) else ()
        return {
            StragglerId(rank, self.rank_to_node[rank])
            for rank, score in scores.items()
            if score < threshold and rank not in contradicted
        }

    def _by_section(self, sections: Mapping[str, Scores], threshold: float) -> dict[str, set[StragglerId]]:
        found = {name: self._below(scores, threshold) for name, scores in sections.items()}
        return {name: stragglers for name, stragglers in found.items() if stragglers}


def from_scores(response: Mapping[str, Any], wanted: tuple[str, ...], nodes: Mapping[str, str]) -> Report:
    """Convert the monitor's ``GET /jobs/{id}/scores`` to a report; ``nodes`` maps hosts to other names.

    Raises:
        KeyError, TypeError, ValueError: the response has another format.
    """
    rows = response["ranks"]
    kinds = {RELATIVE: "relative", INDIVIDUAL: "individual"}
    gpus = {
        score: {int(row["rank"]): _score(row.get(f"gpu_{kind}")) for row in rows} if score in wanted else {}
        for score, kind in kinds.items()
    }
    sections: dict[str, dict[str, dict[int, float]]] = {score: {} for score in kinds}
    for row in rows:
        for name, scores in row["sections"].items():
            for score, kind in kinds.items():
                if score in wanted:
                    sections[score].setdefault(name, {})[int(row["rank"])] = _score(scores.get(kind))
    hosts = _Nodes({int(row["rank"]): nodes.get(row["host"], row["host"]) for row in rows})
    hosts.ranks = _contradicted({int(row["rank"]): _score(row.get("lateness_share")) for row in rows})
    return Report(
        gpu_relative_perf_scores=gpus[RELATIVE],
        section_relative_perf_scores=sections[RELATIVE],
        gpu_individual_perf_scores=gpus[INDIVIDUAL],
        section_individual_perf_scores=sections[INDIVIDUAL],
        rank_to_node=hosts,
    )


def _contradicted(late: Scores) -> frozenset[int]:
    if not any(share >= LATE for share in late.values()):
        return frozenset()
    return frozenset(rank for rank, share in late.items() if share < LATE)


def _score(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
