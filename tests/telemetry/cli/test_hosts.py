"""Host names are shortened where they differ, and stay unambiguous."""

from __future__ import annotations

import pytest

from rankwatch.cli.hosts import legend, short_names, shortened, without_domains

POOL = ("gpu-pool-a-0171.eu-1.cluster.internal", "gpu-pool-a-0172.eu-1.cluster.internal")


@pytest.mark.parametrize(
    ("hosts", "short"),
    [
        (POOL, ["…0171", "…0172"]),
        (("ip-10-42-0-170.a.internal", "ip-10-42-1-174.a.internal"), ["…0-170", "…1-174"]),
        (("a.train.cluster.internal", "b.train.cluster.internal"), ["a…", "b…"]),
        (("rack-1-node", "rack-1-node-2", "rack-1-node-30"), []),  # one of them would be empty
        (("node-1", "node-2"), []),  # nothing to save
        (("alone.cluster.internal",), []),
        (("", "alone.cluster.internal"), []),
        ((), []),
    ],
)
def test_names_keep_the_part_in_which_they_differ(hosts: tuple[str, ...], short: list[str]) -> None:
    assert list(short_names(hosts).values()) == short


def test_a_hundred_hosts_stay_different() -> None:
    hosts = [f"dgx-h100-{rack:02d}-{n:03d}.train.example.internal" for rack in range(10) for n in range(10)]
    names = short_names(hosts)
    assert len(set(names.values())) == len(hosts)
    assert max(map(len, names.values())) <= 7


def test_texts_name_the_short_host_and_one_line_explains_it() -> None:
    names = short_names(POOL)
    assert shortened({"reason": f"Rank 1 on {POOL[0]} is behind.", "rank": 1}, names) == {
        "reason": "Rank 1 on …0171 is behind.",
        "rank": 1,
    }
    assert legend(names) == [f"hosts are shortened: …0171 is {POOL[0]}"]
    assert legend({}) == []


def test_an_abbreviated_reason_omits_the_domain_of_a_long_host() -> None:
    assert without_domains(f"Rank 1 on {POOL[0]} is behind.") == "Rank 1 on gpu-pool-a-0171… is behind."
    assert without_domains("Rank 1 on node-1.local took 12.5 s.") == "Rank 1 on node-1.local took 12.5 s."
