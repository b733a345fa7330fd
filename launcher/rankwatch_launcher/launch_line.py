"""The line that launches this node again, for people who read about a failed job: without what may be a secret.

Arguments may hold credentials, which readers of the monitor must not see. A value is left out by the name before it,
by its form, and by being part of a URL; who launches the job again knows it. Nothing of the environment is sent.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

LONGEST: Final = 2_000
"""Characters; a longer line is not sent, since a part of it would launch something else."""
SECRET: Final = "<secret>"
_NAME: Final = re.compile(
    r"token(?!i[sz])|secret|passw|passphrase|credential|api[-_.]?key|access[-_.]?key|private[-_.]?key|(?<![a-z])key$"
    r"|(?<![a-z])auth(?!or(?!i[sz]))|bearer|cookie|(?<![a-z])sas(?![a-z])",
    re.IGNORECASE,
)
_ASSIGNED: Final = re.compile(r"([^=:\s\"'{}]+)=(.+)", re.DOTALL)
_WITHIN: Final = re.compile(r"[\"']?([\w.-]+)[\"']?\s*[:=]")
"""A name in JSON, YAML or a list of assignments."""
_FORM: Final = re.compile(
    r"(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[a-z]-|AKIA|rw_|eyJ)[\w.-]{8,}|(?<![0-9a-fA-F])[0-9a-fA-F]{32,}"
)
"""Keys of common services, and keys in hexadecimal."""
_USER: Final = re.compile(r"(://)[^/@\s]+@")
_NUMBER: Final = re.compile(r"-?[\d._]+(?:e[-+]?\d+)?[kmb]?", re.IGNORECASE)
"""``--max-tokens 4096`` is none."""


def launch_line(program: str, argv: Sequence[str], folder: str) -> str:
    """The line for a shell; empty: it is too long, or cannot be shown.

    Args:
        folder: in which it was run.
    """
    line = f"cd {shlex.quote(folder)} && {program} {shlex.join(_shown(argv))}"
    return line if len(line) <= LONGEST and line.isprintable() else ""


def _shown(argv: Sequence[str]) -> Iterator[str]:
    secret = False
    for word in argv:
        if secret and not word.startswith("-"):
            yield word if _NUMBER.fullmatch(word) else SECRET
            secret = False
            continue
        name, value = found.groups() if (found := _ASSIGNED.fullmatch(word)) else ("", "")
        secret = word.startswith("-") and not name and _NAME.search(word) is not None
        if name and _NAME.search(name):
            yield word if _NUMBER.fullmatch(value) else f"{name}={SECRET}"
        elif any(_NAME.search(each) for each in _WITHIN.findall(value or word)) or _FORM.search(value or word):
            yield f"{name}={SECRET}" if name else SECRET
        else:
            yield _USER.sub(rf"\1{SECRET}@", word)
