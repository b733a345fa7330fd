"""``rankwatch mcp`` with the client of the package mcp, as an assistant starts it, against a real monitor."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from rankwatch.contract.enums import Action
from rankwatch.contract.policy import ACTION_MEANINGS
from support.launcher import PlayedLauncher
from support.monitor_fixtures import api as api
from support.monitor_fixtures import job as job
from support.monitor_fixtures import launcher as launcher
from support.monitor_fixtures import monitor as monitor
from support.monitor_process import Api, RunningMonitor, environment

if TYPE_CHECKING:  # tests import it as they run: that takes seconds
    from mcp import Client
    from mcp_types import ElicitRequestParams, ElicitResult

READS = {
    "jobs", "job", "report", "incidents", "incident", "why", "stragglers", "goodput", "digest", "hosts", "node",
}  # fmt: skip


def asked(
    monitor: RunningMonitor, use: Callable[[Client], Awaitable[None]], *flags: str, confirms: bool | None = None
) -> list[str]:
    """Start the command as an assistant does, and use it; returns what a person was asked."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp_types import ElicitResult

    questions: list[str] = []
    command = ["-m", "rankwatch", "mcp", "--monitor", monitor.url, *flags]

    async def person(_: Any, request: ElicitRequestParams) -> ElicitResult:
        questions.append(request.message)
        return ElicitResult(action="accept", content={"confirmed": bool(confirms)})

    async def run() -> None:
        server = stdio_client(StdioServerParameters(command=sys.executable, args=command, env=environment()))
        async with Client(server, elicitation_callback=None if confirms is None else person) as client:
            await use(client)

    anyio.run(run)
    return questions


async def text(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool answers."""
    answer = await client.call_tool(tool, arguments)
    (content,) = answer.content
    assert content.type == "text"
    return f"{'error: ' if answer.is_error else ''}{content.text}"


def test_it_reads_and_has_no_tool_that_acts(
    monitor: RunningMonitor, api: Api, job: str, launcher: PlayedLauncher
) -> None:
    api.post(f"/api/v1/jobs/{job}/actions", json={"action": "capture", "reason": "a look"})
    (incident,) = api.incidents(job)

    async def use(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READS
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        assert [each["id"] for each in json.loads(await text(client, "jobs"))["jobs"]] == [job]
        assert json.loads(await text(client, "job"))["id"] == job
        assert [each["id"] for each in json.loads(await text(client, "incidents", job=job))["incidents"]] == [
            incident["id"]
        ]
        assert json.loads(await text(client, "incident", incident=incident["id"]))["id"] == incident["id"]
        for tool in ("report", "why", "stragglers", "goodput", "digest", "hosts"):
            assert not (await text(client, tool)).startswith("error: ")
        assert "none/such" in await text(client, "job", job="none/such")
        assert (await text(client, "job", job="none")).startswith("error: ")

    asked(monitor, use)
    assert len(api.incidents(job)) == 1


@pytest.mark.parametrize(("confirms", "ordered"), [(True, 1), (False, 0), (None, 0)])
def test_an_order_is_sent_once_a_person_has_confirmed_it(
    monitor: RunningMonitor, api: Api, job: str, launcher: PlayedLauncher, confirms: bool | None, ordered: int
) -> None:
    async def use(client: Client) -> None:
        arguments = {"job": job, "action": "restart", "reason": "it hangs"}
        if confirms is None:
            from mcp import MCPError

            with pytest.raises(MCPError):  # the client has nobody to ask
                await text(client, "order", **arguments)
        else:
            assert (await text(client, "order", **arguments)).startswith("error: ") == (not ordered)

    questions = asked(monitor, use, "--allow-control", confirms=confirms)
    assert len(api.incidents(job)) == ordered
    assert [job in question for question in questions] == ([] if confirms is None else [True])


def test_what_a_person_is_asked_is_one_line_that_states_the_action() -> None:
    from rankwatch.cli.mcp import server

    reason = "only a look\n\nNothing is stopped."
    asked = server.confirmation("job\nx", "stop", reason, (), ("n\x1b[2J", "n" * 200))
    assert asked.message.isprintable()
    assert len(asked.message) < 2000
    assert ACTION_MEANINGS[Action.STOP][1:] in asked.message
    assert asked.message.index(ACTION_MEANINGS[Action.STOP][1:]) < asked.message.index("only a look")


MANY = [f"n{i}" for i in range(100)]
LONG: list[tuple[str, str, list[int], list[str]]] = [
    ("j" * 400, "r", [], []),
    ("j", "it hangs" + " " * 400 + "and more", [], []),
    ("j", "r", list(range(100)), []),
    ("j", "r", [], [*MANY, "healthy"]),
]


@pytest.mark.parametrize("given", LONG)
def test_an_order_that_a_person_could_not_read_whole_is_refused(given: tuple[str, str, list[int], list[str]]) -> None:
    from mcp.server.mcpserver.exceptions import ToolError

    from rankwatch.cli.mcp import server

    job, reason, ranks, nodes = given
    with pytest.raises(ToolError, match="characters"):
        server.confirmation(job, "restart", reason, ranks, nodes)


def test_two_orders_are_asked_about_in_two_ways() -> None:
    """The answer to one counts for every call that is asked about in the same words."""
    from rankwatch.cli.mcp import server

    orders: list[tuple[list[int], list[str]]] = [
        ([], []), ([1], []), ([], ["of rank 1"]), ([], ["a", "b"]), ([], ["a b"]), ([], ["a', 'b"]), ([1, 2], []),
    ]  # fmt: skip
    asked = {server.confirmation("j", "restart", "r", ranks, nodes).message for ranks, nodes in orders}
    assert len(asked) == len(orders)
