"""Draws the console of a real run as a moving picture: docs/console.svg, which the README shows.

How this works
--------------
``rankwatch run`` is started on a pseudo terminal of 100 columns with a script that hangs on purpose. Each line that it
prints is kept with its time and colours; the picture shows the lines one after another, with long waits shortened, and
begins again. It is text in one SVG file: no script, no font but the reader's own.
"""

from __future__ import annotations

import argparse
import html
import os
import pty
import re
import struct
import subprocess
import sys
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


def recorded(command: list[str]) -> list[tuple[float, str]]:
    """The lines that a command prints on a terminal, with seconds since the first of them."""
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
    if process.wait() != 0:
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


def drawn(lines: list[tuple[float, str]], command: str) -> str:
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
        'aria-label="The console of rankwatch run while a rank hangs, is named and all ranks are restarted">\n'
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
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "console.svg")
    flags = ["run", "--nproc-per-node", "2", "--inject", "rank=1,step=120,kind=hang"]
    arguments = parser.parse_args()
    lines = shown(recorded([sys.executable, "-P", "-m", "rankwatch", *flags, "--job-id", "train", str(SCRIPT)]))
    arguments.out.write_text(drawn(lines, f"rankwatch {' '.join(flags)} train.py"))


if __name__ == "__main__":
    main()
