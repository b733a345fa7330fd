"""Draws the console of a real run as a moving picture: docs/console.svg, which the README shows, and docs/diagnose.svg.

    python scripts/console_picture.py [console|diagnose] [--out FILE]

How this works
--------------
``rankwatch run`` is started on a pseudo terminal of 100 columns with a script that hangs on purpose. Each line that it
prints is kept with its time and colours; the picture shows the lines one after another, with long waits shortened, and
begins again. It is text in one SVG file: no script, no font but the reader's own. ``diagnose``: the job is one of plain
torchrun with a sick script of ``tests/trust``, and the console that of ``rankwatch diagnose``.
"""

from __future__ import annotations

import argparse
import html
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

COLUMNS, ROW, WIDTH, MARGIN = 100, 19, 8.0, 14
LONGEST_WAIT, REST = 2.5, 5.0
"""Seconds between two lines at most, and after the last one."""
COLOURS = {"32": "#3fb950", "33": "#d29922", "1;31": "#ff7b72"}
PAINTED = re.compile(r"\x1b\[([\d;]*)m")
ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "quickstart" / "train_ddp.py"


def recorded(command: list[str], code: int = 0) -> list[tuple[float, str]]:
    """The lines that a command prints on a terminal until it ends with a code, with seconds since its start."""
    ours, theirs = pty.openpty()
    ioctl(ours, TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    lines: list[tuple[float, str]] = []
    rest, began = b"", time.monotonic()
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        *whole, rest = (rest + read).split(b"\n")
        now = time.monotonic() - began
        lines += [(now, line.decode(errors="replace").rstrip("\r")) for line in whole]
    if process.wait() != code:
        raise SystemExit(f"the run ended with code {process.returncode}")
    return lines


def shown(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The lines of Rankwatch, with when each appears in the picture."""
    own, at, before, inside = [], 0.6, None, False
    for when, line in lines:
        plain = PAINTED.sub("", line)
        inside = bool(re.match(r"\d\d:\d\d:\d\d  ", plain)) or (inside and plain.startswith("          "))
        if inside:
            at += 0.0 if before is None else min(LONGEST_WAIT, when - before)
            before = when
            own.append((at, line))
    return own


def diagnosed() -> list[tuple[float, str]]:
    """What ``rankwatch diagnose`` prints of a job that hangs."""
    port, sick = free_port(), ROOT / "tests" / "trust" / "sick" / "lock.py"
    words = ["-m", "torch.distributed.run", "--nproc-per-node=4", f"--master-port={port}", str(sick)]
    environment = {**os.environ, "PYTHONPATH": str(sick.parents[1]), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "train.log").open("w") as log:
        job = subprocess.Popen([sys.executable, *words], env=environment, stdout=log, stderr=log)
        try:
            while "FAULT" not in Path(log.name).read_text():
                if job.poll() is not None:
                    raise SystemExit("the job has ended")
                time.sleep(0.2)
            lines = recorded([sys.executable, "-P", "-m", "rankwatch", "diagnose", "--job", f"127.0.0.1:{port}"], 3)
        finally:
            job.terminate()  # torchrun ends its ranks
            job.wait()
    return [(min(LONGEST_WAIT, at), line) for at, line in lines]


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def drawn(lines: list[tuple[float, str]], command: str, label: str) -> str:
    """The picture."""
    whole = lines[-1][0] + REST
    height = MARGIN * 2 + ROW * (len(lines) + 2)
    width = MARGIN * 2 + COLUMNS * WIDTH
    rows = [f'<text x="{MARGIN}" y="{MARGIN + ROW}" class="c">$ {html.escape(command)}</text>']
    styles = []
    for number, (at, line) in enumerate(lines):
        y = MARGIN + ROW * (number + 3)
        rows.append(f'<text x="{MARGIN}" y="{y}" class="l l{number}" xml:space="preserve">{coloured(line)}</text>')
        share = 100 * at / whole
        styles.append(f"@keyframes k{number}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}")
        styles.append(f".l{number}{{animation:k{number} {whole:.1f}s infinite}}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="{label}">\n'
        "<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}"
        ".c{fill:#8b949e}@media (prefers-reduced-motion:reduce){.l{animation:none!important}}"
        f"{''.join(styles)}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def coloured(line: str) -> str:
    """A line with its colours as spans."""
    parts, fill = [], ""
    for number, part in enumerate(PAINTED.split(line)):
        if number % 2:
            fill = COLOURS.get(part, "")
        elif part:
            text = html.escape(part)
            parts.append(f'<tspan fill="{fill}">{text}</tspan>' if fill else text)
    return "".join(parts)


def main() -> None:
    """Run, record and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("picture", nargs="?", choices=("console", "diagnose"), default="console")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.picture == "diagnose":
        made = drawn(diagnosed(), "rankwatch diagnose", "The console of rankwatch diagnose at a job that hangs")
    else:
        flags = ["run", "--nproc-per-node", "2", "--inject", "rank=1,step=120,kind=hang"]
        lines = shown(recorded([sys.executable, "-P", "-m", "rankwatch", *flags, "--job-id", "train", str(SCRIPT)]))
        label = "The console of rankwatch run while a rank hangs, is named and all ranks are restarted"
        made = drawn(lines, f"rankwatch {' '.join(flags)} train.py", label)
    (arguments.out or ROOT / "docs" / f"{arguments.picture}.svg").write_text(made)


if __name__ == "__main__":
    main()
