"""The manual: static files built from ``docs`` into ``manual``, and the routes that serve them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from fastapi.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

from rankwatch_monitor.web import PAGE_HEADERS

NOT_BUILT: Final = (
    "This monitor was installed without its manual. 'make docs' in the repository builds it; "
    "the same pages are in the folder docs there.\n"
)
NO_PAGE: Final = "The manual has no such page; its first one is /manual/.\n"

_MEDIA_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
"""What is served, by suffix; independent of the machine's own table of types."""


def manual_folder() -> Path:
    """The folder of the built manual; it does not exist before the first build."""
    return Path(__file__).parent / "manual"


def mount_manual(app: FastAPI, folder: Path | None = None) -> None:
    """Serve the manual below ``/manual/``; without a built manual every address there answers 404 in words."""
    manual = (folder or manual_folder()).resolve()

    @app.api_route("/manual", methods=["GET", "HEAD"], include_in_schema=False)
    def home() -> Response:
        # Relative, since the address of the monitor behind a proxy is not known here.
        return RedirectResponse("manual/", status_code=307) if manual.is_dir() else _missing(NOT_BUILT)

    @app.api_route("/manual/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def file(path: str) -> Response:
        if not manual.is_dir():
            return _missing(NOT_BUILT)
        try:
            found = (manual / (path or "index.html")).resolve()
            if found.is_file() and found.is_relative_to(manual) and found.suffix in _MEDIA_TYPES:
                return FileResponse(found, media_type=_MEDIA_TYPES[found.suffix], headers=PAGE_HEADERS)
        except (OSError, ValueError):  # a name that is too long, or has a null byte
            pass
        return _missing(NO_PAGE)


def _missing(words: str) -> Response:
    return PlainTextResponse(words, status_code=404, headers={"Cache-Control": "no-store"})
