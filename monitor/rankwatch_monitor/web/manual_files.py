"""The manual: static files built from ``docs`` into ``manual``, and the routes that serve them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from fastapi.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

from rankwatch_monitor.web import PAGE_HEADERS

HOW_TO_BUILD: Final = "install a wheel of Rankwatch, or run 'make docs' in the repository"
NOT_BUILT: Final = f"This installation has no manual: {HOW_TO_BUILD}; the same pages are in the folder docs there.\n"
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
_INDEX: Final = "search/search_index.json"
_INDEX_PREFIX: Final = b"var __index = "
"""Before the index in the script of the same name, which is read where the manual is opened as files."""


def manual_folder() -> Path:
    """The folder of the built manual; it does not exist before the first build."""
    return Path(__file__).parent / "manual"


def is_built() -> bool:
    """Whether this installation has the manual."""
    return (manual_folder() / "index.html").is_file()


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
        if path == _INDEX and (script := manual / "search" / "search_index.js").is_file():
            content = script.read_bytes().removeprefix(_INDEX_PREFIX)
            return Response(content, media_type=_MEDIA_TYPES[".json"], headers=PAGE_HEADERS)
        try:
            found = (manual / (path or "index.html")).resolve()
            if found.is_file() and found.is_relative_to(manual) and found.suffix in _MEDIA_TYPES:
                return FileResponse(found, media_type=_MEDIA_TYPES[found.suffix], headers=PAGE_HEADERS)
        except (OSError, ValueError):  # a name that is too long, or has a null byte
            pass
        return _missing(NO_PAGE)


def _missing(words: str) -> Response:
    return PlainTextResponse(words, status_code=404, headers={"Cache-Control": "no-store"})
