"""What one open tab of the page receives of a large job that trains: bytes on the wire, by what the page reads.

Emulated ranks (``load.py``) train against a real monitor. A client reads what the page of a job reads, as a browser
does (gzip accepted), and counts the body as it arrives and as it is once decompressed: the event stream, the ranks, and
the job with its goodput, each every 10 s (``live/job.ts``, ``live/slow_poll.ts``).

Run: python benchmarks/page_traffic.py [--ranks 16384] [--seconds 60] [--json FILE]     Goal: 50 KB/s
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Final

import _service
import requests
from _table import arguments, report

STEP_SECONDS: Final = 2.0
READS: Final = {"/ranks": 10.0, "": 10.0, "/goodput": 10.0}
"""Seconds between two reads of each path below the job."""


class Counts:
    """Bytes by source: received, and after decompression."""

    def __init__(self) -> None:
        self.received: dict[str, int] = {}
        self.unpacked: dict[str, int] = {}

    def add(self, source: str, raw: bytes, whole: int) -> None:
        """Count one piece."""
        self.received[source] = self.received.get(source, 0) + len(raw)
        self.unpacked[source] = self.unpacked.get(source, 0) + whole


def follow(url: str, counts: Counts, ended: threading.Event) -> None:
    """Read the event stream until the end."""
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
    with requests.get(f"{url}/events", headers={"accept-encoding": "gzip"}, stream=True, timeout=30) as answer:
        packed = answer.headers.get("content-encoding") == "gzip"
        for raw in iter(lambda: answer.raw.read1(1 << 16, decode_content=False), b""):
            counts.add("event stream", raw, len(unpack.decompress(raw)) if packed else len(raw))
            if ended.is_set():
                return


def poll(url: str, counts: Counts, seconds: float) -> None:
    """Read the paths of the page, each at its interval."""
    end, due = time.monotonic() + seconds, dict.fromkeys(READS, 0.0)
    while (now := time.monotonic()) < end:
        for path, every in READS.items():
            if now >= due[path]:
                due[path] = now + every
                with requests.get(url + path, headers={"accept-encoding": "gzip"}, stream=True, timeout=30) as answer:
                    raw = answer.raw.read(decode_content=False)
                packed = answer.headers.get("content-encoding") == "gzip"
                counts.add(path or "/", raw, len(zlib.decompress(raw, zlib.MAX_WBITS | 32)) if packed else len(raw))
        time.sleep(0.2)


def main() -> None:
    """Measure and print."""
    asked = arguments(__doc__ or "", ranks=(16_384, "emulated ranks"), seconds=(60.0, "how long is measured"))
    with tempfile.TemporaryDirectory() as folder, _service.monitor(Path(folder)) as monitor:
        load = [sys.executable, str(Path(__file__).with_name("load.py")), "--url", monitor, "--ranks", str(asked.ranks)]
        load += ["--step-seconds", str(STEP_SECONDS), "--seconds", str(asked.seconds + 60.0)]
        with _service.process(load, Path(folder) / "load.log"):

            def trains() -> str | None:
                jobs = (_service.get(f"{monitor}/api/v1/jobs") or {"jobs": []})["jobs"]
                ready = (j["id"] for j in jobs if j["ranks_reporting"] >= 0.99 * asked.ranks and j["iteration"])
                return next(ready, None)

            url = f"{monitor}/api/v1/jobs/{_service.wait_for('all ranks', trains, 300.0)}"
            counts, ended = Counts(), threading.Event()
            stream = threading.Thread(target=follow, args=(url, counts, ended), daemon=True)
            stream.start()
            poll(url, counts, asked.seconds)
            ended.set()
            stream.join(10)
    seconds = 1000.0 * asked.seconds
    rows = {
        source: {"received": size / seconds, "unpacked": counts.unpacked[source] / seconds}
        for source, size in sorted(counts.received.items())
    }
    rows["all"] = {each: sum(row[each] for row in rows.values()) for each in ("received", "unpacked")}
    report(rows, "KB/s", asked.json)


if __name__ == "__main__":
    main()
