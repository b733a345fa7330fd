"""Decodes JSON of other processes in such a way that nobody waits for it.

Decoders in C keep the interpreter's lock until they are done, for half a second with 4 MiB of names. A large document
is decoded in Python, on a thread, which gives the lock up every few milliseconds; one of more names than any message
has is refused at once.
"""

from __future__ import annotations

import json
import json.scanner
from typing import Any, Final

from rankwatch_monitor.ingest.limits import KIB
from rankwatch_monitor.ingest.rejection import Refusal

SMALL: Final = 64 * KIB
"""Bytes of a document that is decoded in C, within a few milliseconds."""
MOST_NAMES: Final = 4_096
"""Different names of fields and of entries of mappings; messages have some hundreds, and of these 256 sections."""


class _Names(dict[str, str]):
    """The names of a document so far, each held once."""

    def setdefault(self, name: str, default: str | None = None) -> str:
        """The name as it is held."""
        if len(self) >= MOST_NAMES and name not in self:
            raise Refusal(413, "bad_body", f"the JSON has more than {MOST_NAMES} different names: send less")
        return super().setdefault(name, default or name)


def decode(document: bytes) -> Any:
    """What a JSON document in UTF-8 stands for.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deeply.
        Refusal: 413, it has too many names.
    """
    decoder = json.JSONDecoder()
    if len(document) > SMALL:
        decoder.memo = _Names()  # type: ignore[attr-defined]
        decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder.decode(document.decode())
