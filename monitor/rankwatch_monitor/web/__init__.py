"""The page: static files built from ``source`` into ``static``, and the routes that serve them."""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

HOW_TO_BUILD: Final = "install a wheel of Rankwatch, or run 'make web' in the repository"
NOT_BUILT: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Rankwatch</title>'
    "<p>The monitor is running, but this installation has no page: install a wheel of Rankwatch, or run "
    "<code>make web</code> in the repository, then reload.</p></html>"
)

# No referrer, since the URL may hold a token for a moment. No other origin, since everything comes from this server.
# Names in assets/ change with their content, so those are immutable, while the page must be revalidated.
PAGE_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
}
_ASSET_HEADERS: Final = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "Vary": "Accept-Encoding",
}
_MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def static_folder() -> Path:
    """The folder of the built page; it does not exist before the first build."""
    return Path(__file__).parent / "static"


def is_built() -> bool:
    """Whether this installation has the page."""
    return (static_folder() / "index.html").is_file()


def mount(app: FastAPI, folder: Path | None = None) -> None:
    """Serve the page at ``/``, a job at ``/j/JOB``, the API's description at ``/docs``, their files under ``/assets``.

    Files are read per request, so that a build needs no restart.
    """
    static = folder or static_folder()

    def document(name: str) -> Response:
        file = static / name
        if not file.is_file():
            return HTMLResponse(NOT_BUILT, status_code=503, headers={"Cache-Control": "no-store"})
        return HTMLResponse(file.read_bytes(), headers=PAGE_HEADERS)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    def page() -> Response:
        return document("index.html")

    @app.api_route("/j/{job_id}", methods=["GET", "HEAD"], include_in_schema=False)
    def job(job_id: str) -> Response:
        """The short address that launchers print; relative, since a proxy may have put a prefix before it."""
        return RedirectResponse(f"../#/jobs/{quote(job_id, safe='')}", headers={"Referrer-Policy": "no-referrer"})

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    def description() -> Response:
        return document("docs.html")

    @app.api_route("/assets/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    def asset(name: str, request: Request) -> Response:
        # Looked up in a listing, so that no name can lead out of the folder.
        found = next((file for file in (static / "assets").glob("*") if file.name == name), None)
        if found is None:
            return Response(status_code=404)
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        return Response(
            _zipped(found, found.stat().st_mtime_ns) if zipped else found.read_bytes(),
            media_type=_MEDIA_TYPES.get(found.suffix, "application/octet-stream"),
            headers=_ASSET_HEADERS | ({"Content-Encoding": "gzip"} if zipped else {}),
        )


@lru_cache(maxsize=16)
def _zipped(file: Path, _changed_ns: int) -> bytes:
    """Compress once per version of a file; the page is often loaded through a slow tunnel."""
    return gzip.compress(file.read_bytes(), mtime=0)
