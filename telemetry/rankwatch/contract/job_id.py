"""Which ids a job may have: an id is part of URLs, of file names and of metric labels."""

from __future__ import annotations

import hashlib
import re
from typing import Final

LONGEST: Final = 256
"""Characters of an id."""
_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9._:@=+-]")


def problem(job_id: str) -> str | None:
    """Why this cannot be the id of a job; None if it can."""
    if not job_id:
        return "it is empty"
    if len(job_id) > LONGEST:
        return f"it has {len(job_id)} characters, and the limit is {LONGEST}"
    if not job_id.isprintable():
        return "it has control characters"
    if "/" in job_id:
        return "it has a slash, and an id is part of URLs"
    if job_id in (".", ".."):
        return "it would be a folder in URLs"
    return None


def usable(text: str) -> str:
    """An id made of any text: the text itself if possible, else one like it with a hash, so that no two are alike."""
    if problem(text) is None:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_UNUSABLE.sub('_', text)[: LONGEST - 9]}-{digest}"
