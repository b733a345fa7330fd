"""How the page is served: built, not built, and with headers that neither keep old pages nor leak the token."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from rankwatch_monitor.web import mount, static_folder
from support import coroutines


class Served:
    """The page of a folder, asked in-process."""

    def __init__(self, folder: Path) -> None:
        self.app = FastAPI()
        mount(self.app, folder)

    def get(self, path: str, encoding: str = "identity") -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://monitor") as client:
                return await client.get(path, headers={"accept-encoding": encoding})

        return coroutines.run(ask())


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>Rankwatch</title>")
    (folder / "assets" / "index-abc.js").write_text("export const a = 1;" * 100)
    (folder / "secret.txt").write_text("not an asset")
    return folder


def test_page_that_was_not_built_states_how(tmp_path: Path) -> None:
    answer = Served(tmp_path / "nothing").get("/")
    assert answer.status_code == 503
    assert "make web" in answer.text
    assert answer.headers["cache-control"] == "no-store"


def test_assets_of_a_page_that_was_not_built_are_unknown(tmp_path: Path) -> None:
    assert Served(tmp_path / "nothing").get("/assets/index-abc.js").status_code == 404


def test_a_build_shows_without_a_restart(tmp_path: Path) -> None:
    client = Served(tmp_path)
    assert client.get("/").status_code == 503
    (tmp_path / "index.html").write_text("<title>now</title>")
    assert client.get("/").status_code == 200


def test_page_is_asked_for_again_and_contacts_no_other_host(built: Path) -> None:
    answer = Served(built).get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_assets_are_kept_for_ever(built: Path) -> None:
    answer = Served(built).get("/assets/index-abc.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    assert "content-encoding" not in answer.headers


def test_assets_are_compressed_for_clients_that_ask(built: Path) -> None:
    answer = Served(built).get("/assets/index-abc.js", encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < 200
    assert answer.text == (built / "assets" / "index-abc.js").read_text()


def test_a_changed_asset_is_not_served_from_the_old_compression(built: Path) -> None:
    client = Served(built)
    client.get("/assets/index-abc.js", encoding="gzip")
    (built / "assets" / "index-abc.js").write_text("export const a = 2;")
    assert client.get("/assets/index-abc.js", encoding="gzip").text == "export const a = 2;"


@pytest.mark.parametrize("name", ["../secret.txt", "..%2Fsecret.txt", "%2e%2e/secret.txt", "*", "", "index-*.js"])
def test_no_name_leads_out_of_the_assets(built: Path, name: str) -> None:
    assert Served(built).get(f"/assets/{name}").status_code == 404


def test_the_routes_stay_out_of_the_schema(built: Path) -> None:
    assert Served(built).get("/openapi.json").json()["paths"] == {}


def test_built_page_loads_nothing_from_elsewhere() -> None:
    index = static_folder() / "index.html"
    if not index.is_file():
        pytest.skip("the page was not built: make web")
    assert "http://" not in index.read_text()
    assert "https://" not in index.read_text()


def test_built_page_is_small_enough_for_a_slow_tunnel() -> None:
    # The description of the API loads Swagger UI, which the page does not.
    scripts = [file for file in (static_folder() / "assets").glob("*.js") if not file.name.startswith("docs-")]
    if not scripts:
        pytest.skip("the page was not built: make web")
    assert sum(len(gzip.compress(script.read_bytes())) for script in scripts) < 100_000


def test_the_short_address_of_a_job_leads_to_its_place_on_the_page(built: Path) -> None:
    answer = Served(built).get("/j/team%20run")
    assert answer.status_code == 307
    assert answer.headers["location"] == "../#/jobs/team%20run"
