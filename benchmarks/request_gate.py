"""CPU time that the request gate adds to a request of the application, by turns with and without it in one run.

Reports of ranks that are sent as P6 sends them (protobuf, 8 a request) are taken by the fast lane and pass no gate; the
first row is what they cost when they come through the application after all, as those of other emitters may. "GET" is a
read of the API.

Run: python benchmarks/request_gate.py [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any, Final

from ingest_decode import bodies
from starlette.types import ASGIApp, Message

from rankwatch.contract import semconv
from rankwatch_monitor.app import create_app
from rankwatch_monitor.http.auth import Tokens
from rankwatch_monitor.http.request_gate import RequestGate
from rankwatch_monitor.service.monitor import Monitor

ROUNDS: Final = 30
RANKS: Final = 512
IN_A_REQUEST: Final = 8
TOKEN: Final = "secret"


async def ask(app: ASGIApp, method: str, path: str, body: bytes) -> int:
    """Send one request to the application and return the status of its response."""
    host, bearer = (b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())
    sent = (b"content-type", b"application/x-protobuf"), (b"content-length", str(len(body)).encode())
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "state": {},
        "headers": [host, bearer, *sent],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    status = 0

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    await asyncio.sleep(0)  # a turn of the loop that takes long is an overload, in which reports are refused
    return status


async def measure(what: str) -> dict[str, object]:
    """Return the ratio of CPU times with the gate and without it, round by round."""
    app = create_app(Monitor(), Tokens(control=TOKEN))
    gated: Any = app.build_middleware_stack()
    outer = gated
    while not isinstance(outer.app, RequestGate):
        outer = outer.app
    gate, behind = outer.app, outer.app._app
    figures: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(ROUNDS + 1):
        time_ns = 1_750_000_000_000_000_000 + 2 * turn * 10**9
        for with_gate in (True, False) if turn % 2 else (False, True):
            requests = bodies(IN_A_REQUEST, "protobuf", time_ns + with_gate * 10**9, RANKS, "plain")
            outer.app = gate if with_gate else behind
            began = time.process_time()
            for body in requests:
                if what == "metrics":
                    assert await ask(gated, "POST", semconv.OTLP_METRICS_PATH, body) == 200
                else:
                    assert await ask(gated, "GET", f"{semconv.API_PREFIX}/jobs", b"") == 200
            figures[with_gate].append((time.process_time() - began) / len(requests) * 1e6)
    pairs = list(zip(figures[True][1:], figures[False][1:], strict=True))  # the first round warms up
    ratios = statistics.quantiles([with_gate / without for with_gate, without in pairs], n=10)
    return {
        "request": what,
        "us_with": round(statistics.median(each for each, _ in pairs), 1),
        "us_without": round(statistics.median(each for _, each in pairs), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_p10": round(ratios[0], 3),
        "ratio_p90": round(ratios[-1], 3),
    }


def main() -> None:
    """Measure, print a table, and write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args()
    rows = [asyncio.run(measure(what)) for what in ("metrics", "GET")]
    print("request   us with the gate  us without  ratio (p10 - p90)")
    for row in rows:
        spread = f"({row['ratio_p10']} - {row['ratio_p90']})"
        print(f"{row['request']:<9} {row['us_with']:>16} {row['us_without']:>11}  {row['ratio']} {spread}")
    if chosen.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        chosen.json.write_text(json.dumps({"benchmark": "request_gate", "machine": machine, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
