"""The bandwidths of a job: the table, the metrics with bounded labels, the words of a slow link."""

from __future__ import annotations

import pytest

from monitor.publish.prometheus.test_exposition import samples, value
from monitor.publish.scored import scored
from rankwatch.cli.formatting import listed
from rankwatch.contract.collectives import series
from rankwatch.contract.statistics import OperationWindow
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.slow_cause import SlowLink
from rankwatch_monitor.core.straggler.bandwidth import Moved
from rankwatch_monitor.core.views.communication import KINDS, SHOWN, communication, kinds
from rankwatch_monitor.core.words import slow as words

MB = 1_000_000
HOSTS = tuple(f"node{rank}" for rank in range(2_000))


def moved(ranks: tuple[int, ...], seconds: float, size: int = 8 * MB) -> Moved:
    made = Moved()
    for rank in ranks:
        made.take(rank, OperationWindow(1, seconds, seconds, size, size, size))
    return made


def with_groups(seconds: dict[str, float], operation: str = "all_reduce", windows: int = 6) -> Job:
    job = scored()
    groups = enumerate(seconds.items())
    found = {series(operation, name): moved((2 * n, 2 * n + 1), each) for n, (name, each) in groups}
    for _ in range(windows):
        job.performance.bandwidths.take(found, HOSTS, 100.0)
    return job


def test_a_group_stands_beside_its_peers() -> None:
    shown = communication(with_groups({"dp (1)": 0.1, "dp (2)": 0.1, "dp (3)": 0.8, "world": 0.2}))
    first = shown.operations[0]
    assert (first.group, first.slow, first.hosts) == ("dp (3)", True, ["node4", "node5"])
    assert (first.algorithm, first.bus, first.peers) == (10 * MB, 10 * MB, 80 * MB)
    assert [each.slow for each in shown.operations[1:]] == [False] * 3
    assert (shown.at, shown.omitted) == (100.0, 0)


def test_what_has_no_size_has_no_bandwidth() -> None:
    job = scored()
    for _ in range(3):
        job.performance.bandwidths.take({"barrier world": moved((0, 1), 0.1, size=0)}, HOSTS, 1.0)
    (row,) = communication(job).operations
    assert (row.operation, row.seconds, row.algorithm, row.bus, row.best) == ("barrier", 0.1, None, None, None)
    assert kinds(job) == []


def test_tables_and_labels_are_bounded_whatever_the_number_of_groups() -> None:
    job = with_groups({f"dp ({n})": 0.1 + n / 1000 for n in range(SHOWN + 50)})
    shown = communication(job)
    assert (len(shown.operations), shown.omitted) == (SHOWN, 50)
    found = samples(job)
    assert sum(name == "rankwatch_communication_bandwidth_bytes_per_second" for name, _ in found) == 3
    assert sum(name == "rankwatch_group_bandwidth_bytes_per_second" for name, _ in found) == 5
    labels = {"job": job.id, "kind": "dp (#)", "operation": "all_reduce"}
    assert value(found, "communication_bandwidth_bytes_per_second", aggregation="max", **labels) == 80 * MB
    named = with_groups({chr(97 + n) * 3: 0.1 for n in range(KINDS + 8)})
    assert len(kinds(named)) == KINDS


def test_a_slow_link_states_bandwidths_and_its_member() -> None:
    link = SlowLink("dp (3)", 0.4, 0.1, "others", operation="all_reduce", bandwidth=11e9, usual_bandwidth=43e9)
    said = words.link(link._replace(hosts=("node1", "node7"), slow_host="node7"))
    assert "(all_reduce: 11 GB/s where its peers have 43 GB/s)" in said
    assert said.endswith("the slow member is node7, as its other groups show.")
    assert words.link(link._replace(hosts=("node1", "node7"))).endswith("the link between node1 and node7 is slow.")
    assert words.link(link).endswith("the link between them is slow.")


@pytest.mark.parametrize("hosts", [2, 3, 500])
def test_few_hosts_of_a_group_are_named(hosts: int) -> None:
    said = listed(HOSTS[:hosts], words.SHOWN)
    assert len(said) < 100
    assert said.startswith("node0")
