"""Hooks of MkDocs: what a manual needs that is served under a strict content security policy and read offline.

The theme's small inline scripts become files, since the policy allows no inline script. Links that lead out of ``docs``
become the path of the file, since the manual is read where there is no repository.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any, Final

from mkdocs.plugins import event_priority

INLINE: Final = re.compile(r"<script>(.+?)</script>", re.DOTALL)
STYLE: Final = re.compile(r'(<t[hd][^>]*?) style="text-align: (\w+);?"')
LINK: Final = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)(?:#[^)\s]*)?\)")
UNUSED: Final = (
    *("404.html", "sitemap.xml", "sitemap.xml.gz"),  # need the address of the site, which only the browser knows
    "search/search_index.json",  # a second time in search_index.js, from which the monitor serves it
)
OTHER_LANGUAGES: Final = Path("assets", "javascripts", "lunr")
"""Stemmers and word lists for a search in other languages than English."""

_scripts: dict[str, str] = {}


def on_pre_build(**_: Any) -> None:
    """Forget the scripts of an earlier build."""
    _scripts.clear()


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links to files outside of ``docs`` by their paths."""
    folder = posixpath.dirname(page.file.src_uri)

    def path(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        return f"`{target}`" if link[1].strip("`") in target else f"{link[1]} (`{target}`)"

    return LINK.sub(path, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Move inline scripts into files and alignment into classes."""
    up = "../" * page.file.dest_uri.count("/")

    def moved(script: re.Match[str]) -> str:
        name = hashlib.sha256(script[1].encode()).hexdigest()[:12] + ".js"
        _scripts[name] = script[1]
        return f'<script src="{up}assets/inline/{name}"></script>'

    return STYLE.sub(r'\1 class="align-\2"', INLINE.sub(moved, output))


@event_priority(-200)  # after the offline plugin, which makes one search index of the other
def on_post_build(*, config: Any, **_: Any) -> None:
    """Write the scripts, and remove what is not needed."""
    site = Path(config["site_dir"])
    folder = site / "assets" / "inline"
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in _scripts.items():
        (folder / name).write_text(script)
    for name in UNUSED:
        (site / name).unlink(missing_ok=True)
    shutil.rmtree(site / OTHER_LANGUAGES, ignore_errors=True)
    for source_map in site.rglob("*.map"):
        source_map.unlink()
