"""Slow and lost nodes are also attributed to the rack, switch or NVLink domain that they have in common."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from monitor.core.scene import Scene
from monitor.core.test_node_loss import lose
from rankwatch.contract.enums import StragglerVerdict
from rankwatch.contract.messages import NodeRegistration, read
from rankwatch_monitor.core.job import Job
from rankwatch_monitor.core.places import SharedPlace, shared_place
from rankwatch_monitor.core.straggler.findings import Finding
from rankwatch_monitor.core.views import incident_view
from rankwatch_monitor.http.validation import clean
from support.windows import DATA, Ranks, Work

PATHS = {
    "a1": ("rack=1", "switch=a"), "a2": ("rack=1", "switch=a"), "b1": ("rack=1", "switch=b"),
    "c1": ("rack=2", "switch=c"), "c2": ("rack=2", "switch=c"), "c3": ("rack=2", "switch=c"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("hosts", "place"),
    [
        (("a1", "a2"), SharedPlace("switch=a", 2, 2)),
        (("a1", "b1"), SharedPlace("rack=1", 2, 3)),
        (("c1", "c3"), SharedPlace("switch=c", 2, 3)),
        (("a1", "a2", "c1"), None),
        (("a1", "c1"), None),
        (("a1",), None),
        (("a1", "unknown"), None),
        ((), None),
        (tuple(PATHS), None),
    ],
    ids=["switch", "rack", "most", "spread", "two racks", "one", "unknown", "none", "all"],
)
def test_the_narrowest_place_of_several_nodes(hosts: tuple[str, ...], place: SharedPlace | None) -> None:
    assert shared_place(PATHS, hosts) == place


def test_a_place_of_the_whole_job_or_with_few_of_its_nodes_is_none() -> None:
    assert shared_place({f"h{n}": ("rack=1",) for n in range(4)}, ("h0", "h1")) is None
    wide = {f"h{n}": ("rack=1",) if n < 6 else ("rack=2",) for n in range(9)}
    assert shared_place(wide, ("h0", "h1")) is None


def label(job: Job, labels: dict[str, tuple[str, ...]]) -> None:
    for node in job.nodes.values():
        node.registration = replace(node.registration, topology=labels.get(node.registration.host, ()))


def slow_hosts(*hosts: int) -> Ranks:
    def slow(_: int, work_RP: Work) -> None:
        for host in hosts:
            work_RP[2 * host : 2 * host + 2, DATA] += 0.3

    made = Ranks(16, per_host=2, launchers=True)
    label(made.job, {f"host-{n}": (f"switch=s{n // 3}",) for n in range(8)})
    return made.run(4).run(8, slow)


def test_slow_nodes_of_one_switch_are_one_finding_that_names_it() -> None:
    made = slow_hosts(3, 4, 5)
    finding = made.performance.finding
    assert (finding.verdict, finding.place) == (StragglerVerdict.WORKER, "switch=s1")
    assert sorted(finding.ranks) == list(range(6, 12))
    assert finding.reason.startswith("3 of 3 nodes of switch s1 are slow, and none elsewhere: this costs ")
    assert len([each for each in made.performance.findings if each.verdict is StragglerVerdict.WORKER]) == 1


@pytest.mark.parametrize("hosts", [(1, 4), (3,)], ids=["two switches", "one node"])
def test_slow_nodes_that_share_no_place_are_named_as_before(hosts: tuple[int, ...]) -> None:
    made = slow_hosts(*hosts)
    assert made.performance.finding.verdict is StragglerVerdict.WORKER
    assert {each.place for each in made.performance.findings} == {""}


def test_lost_nodes_of_one_switch_are_attributed_to_it() -> None:
    scene = Scene(8, 4).run(10)
    label(scene.job, {f"host-{n}": (f"switch={switch}",) for n, switch in enumerate("abba")})
    scene.cut_host(1)
    scene.cut_host(2)
    scene.run(3)
    lose(scene, "node-1")
    lose(scene, "node-2")
    shown = incident_view.shown(scene.job, scene.incident, scene.now)["of_place"]
    assert shown is not None
    assert (shown["label"], shown["nodes"], shown["of"]) == ("switch=b", 2, 2)
    assert shown["text"] == "2 of 2 nodes of switch b are named, and none elsewhere."


def test_one_lost_node_is_attributed_to_no_switch() -> None:
    scene = Scene(4, 2).run(10)
    label(scene.job, {"host-0": ("switch=a",), "host-1": ("switch=b",)})
    scene.cut_host(1)
    scene.run(3)
    lose(scene)
    assert incident_view.shown(scene.job, scene.incident, scene.now)["of_place"] is None


def test_labels_of_a_launcher_are_bounded_and_cleaned() -> None:
    bad = NodeRegistration(
        "n", "h", 1, 2, topology=("rack=r1", "\x1b[2J=x", "no label", "a=" + "b" * 500, *("c=1",) * 50)
    )
    assert clean(bad, 256).topology == ("rack=r1", "a=" + "b" * 118, "c=1")


def test_a_finding_with_its_place_is_stored() -> None:
    finding = slow_hosts(3, 4, 5).performance.finding
    assert read(Finding, json.loads(json.dumps(asdict(finding)))) == finding
