"""The manual: served below /manual under the page's policy, complete in itself, searchable also as files."""

from __future__ import annotations

import importlib.util
import re
import socket
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, Page

from rankwatch_monitor.web.manual_files import manual_folder, mount_manual
from support import coroutines

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_manual", ROOT / "scripts" / "build_manual.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built manual: that of ``make docs`` if it is up to date."""
    builder = script()
    if builder.up_to_date():
        return manual_folder()
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed")
    folder = tmp_path_factory.mktemp("manual")
    builder.build(folder=folder, strict=True)
    return folder


@pytest.mark.parametrize("strict", [True, False])
def test_a_link_that_leads_nowhere_fails_a_strict_build_alone(tmp_path: Path, strict: bool) -> None:
    pytest.importorskip("mkdocs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[a page](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: small\ntheme: {name: null, custom_dir: theme}\n")
    (tmp_path / "theme").mkdir()
    (tmp_path / "theme" / "main.html").write_text("{{ page.content }}")
    (tmp_path / "pyproject.toml").write_text("[dependency-groups]\nmanual = ['mkdocs-material>=9']\n")
    builder, folder = script(), tmp_path / "site"
    if strict:
        with pytest.raises(SystemExit, match=r"nowhere\.md"):
            builder.build(tmp_path, folder, strict=True)
        assert not folder.exists(), "no half of a manual is left"
    else:
        builder.build(tmp_path, folder)
        assert (folder / "index.html").is_file()


def test_the_tools_are_those_of_pyproject_in_the_versions_of_constraints(tmp_path: Path) -> None:
    builder = script()
    names = [each.partition("==")[0] for each in builder.tools()]
    assert names == ["mkdocs-material", "mkdocstrings[python]"]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(each.replace("[python]", "") in pins for each in builder.tools())


# Serving -------------------------------------------------------------------------------------------------------------


class Served:
    """The manual of a folder, asked in-process."""

    def __init__(self, folder: Path) -> None:
        self.app = FastAPI(redirect_slashes=False)
        mount_manual(self.app, folder)

    def get(self, path: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://monitor") as client:
                return await client.get(path)

        return coroutines.run(ask())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "manual"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>Rankwatch</title>")
    (folder / "assets" / "a.css").write_text("a {}")
    (tmp_path / "secret.html").write_text("not of the manual")
    (folder / "link.html").symlink_to(tmp_path / "secret.html")
    return folder


@pytest.mark.parametrize("path", ["/manual", "/manual/", "/manual/detection.html"])
def test_a_monitor_without_a_manual_answers_404(tmp_path: Path, path: str) -> None:
    answer = Served(tmp_path / "nothing").get(path)
    assert answer.status_code == 404
    assert "make docs" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_the_address_without_a_slash_leads_on_without_naming_a_host(small: Path) -> None:
    answer = Served(small).get("/manual")
    assert (answer.status_code, answer.headers["location"]) == (307, "manual/")


def test_pages_have_the_policy_of_the_page_and_their_type(small: Path) -> None:
    home = Served(small).get("/manual/")
    assert home.status_code == 200
    assert home.headers["content-type"].startswith("text/html")
    policy = home.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert Served(small).get("/manual/assets/a.css").headers["content-type"].startswith("text/css")


@pytest.mark.parametrize(
    "path",
    [
        *("/manual/no.html", "/manual/assets", "/manual/../secret.html", "/manual/%2e%2e/secret.html"),
        *("/manual/link.html", "/manual//etc/passwd", "/manual/%00.html", "/manual/" + "a" * 5000),
    ],
)
def test_nothing_but_files_of_the_manual_is_served(small: Path, path: str) -> None:
    answer = Served(small).get(path)
    assert answer.status_code == 404
    assert "not of the manual" not in answer.text


# What was built ------------------------------------------------------------------------------------------------------


class Loads(HTMLParser):
    """Collects what a page loads, and what its policy would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.refused: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in given and given.get("type") != "application/json"):
            self.refused.append(tag)
        self.refused += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        if tag in ("script", "img", "iframe"):
            self.loaded.append(given.get("src") or "")
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "manifest"):
            self.loaded.append(given.get("href") or "")


def test_pages_load_only_files_of_the_manual_and_nothing_inline(manual: Path) -> None:
    pages = sorted(manual.rglob("*.html"))
    assert len(pages) > 50
    wrong = []
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        missing = [src for src in loads.loaded if src and not (page.parent / src.partition("?")[0]).is_file()]
        wrong += [f"{page.name}: {what}" for what in (*missing, *loads.refused)]
    assert wrong == []


def test_signatures_of_the_python_interface_are_in_it(manual: Path) -> None:
    page = re.sub(r"<[^>]+>", "", (manual / "python-api.html").read_text())
    for name in ("init", "section", "exclude_node", "RankwatchCallback", "RerunStateMachine"):
        assert re.search(rf"\b{name}\(", page), name


# In a browser --------------------------------------------------------------------------------------------------------


@pytest.fixture
def address(manual: Path) -> Iterator[str]:
    app = FastAPI()
    mount_manual(app, manual)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # connections wait from here on
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/manual"
        finally:
            server.should_exit = True
            thread.join(20)


def complaints(page: Page) -> list[str]:
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type in ("error", "warning") else None)
    page.on("response", lambda answer: found.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    page.on("requestfailed", lambda request: found.append(request.url))
    return found


def search(page: Page) -> None:
    page.locator("[data-md-component=search-query]").press_sequentially("learned limit")  # it listens to keys
    page.locator(".md-search-result__item a").first.wait_for()


def test_a_browser_shows_and_searches_it_without_a_complaint(page: Page, address: str) -> None:
    found = complaints(page)
    for path in ("", "/detection.html", "/python-api.html", "/adr/0018-confirmed-by-evidence.html"):
        with page.expect_event("requestfinished", lambda request: request.url.endswith("search_index.json")):
            page.goto(address + path, wait_until="networkidle")  # all it loads, or the next page aborts that
        page.locator("article h1").first.wait_for()
    search(page)
    assert found == []


def test_it_is_searched_as_files_too(browser: Browser, manual: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    found = complaints(page)
    page.goto((manual / "index.html").as_uri())
    page.locator("label.md-header__button[for=__search]").click()
    search(page)
    page.close()
    assert found == []


def test_no_page_is_wider_than_a_phone(browser: Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    wide = []
    for path in ("", "/detection.html", "/reference.html", "/python-api.html"):
        page.goto(address + path)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(path)
    page.close()
    assert wide == []
