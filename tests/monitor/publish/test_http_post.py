"""What came of a request, in words that never hold more of the address than scheme and host."""

from __future__ import annotations

import logging
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from rankwatch_monitor.publish import http_post
from rankwatch_monitor.publish.http_post import Target, checked, fingerprint, shown
from support.http_receiver import Answers, HttpReceiver
from support.ports import free_port

SECRET = "T0/B0/very-secret"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (200, ""),
        (204, ""),
        (302, "answers 302 Found; give the address that it redirects to"),
        (404, "answers 404 Not Found"),
        (599, "answers 599"),
    ],
)
def test_an_answer(receiver: HttpReceiver, status: int, words: str) -> None:
    receiver.answers = Answers(status, {"Location": f"{receiver.url}/elsewhere"})
    answer = Target(f"{receiver.url}/{SECRET}").post(b"{}", {"X-Own": "1"})
    assert (answer.status, answer.problem, answer.taken) == (status, words, status < 300)
    assert [each.path for each in receiver.posted] == [f"/{SECRET}"], "a redirect is not followed"
    assert receiver.posted[0].headers["x-own"] == "1"


def test_a_user_in_the_address_becomes_basic_authorization(receiver: HttpReceiver) -> None:
    Target(f"http://me:p%40ss@127.0.0.1:{receiver.port}/x").post(b"", {})
    assert receiver.posted[0].headers["authorization"] == "Basic bWU6cEBzcw=="


def test_netrc_does_not_replace_the_header_that_was_given(
    receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    netrc = tmp_path_factory.mktemp("home") / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(netrc))
    Target(receiver.url).post(b"", {"Authorization": "Bearer mine"})
    assert receiver.posted[0].headers["authorization"] == "Bearer mine"


def test_one_that_is_away_hangs_or_breaks_off_is_an_answer_too(
    receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Target(f"http://127.0.0.1:{free_port()}/{SECRET}").post(b"", {})
    assert (answer.status, answer.problem) == (None, "cannot be reached (Connection refused)")
    monkeypatch.setattr(http_post, "ANSWER_TIMEOUT", 0.2)
    receiver.answers = Answers(status=None)
    assert Target(f"{receiver.url}/{SECRET}").post(b"", {}).problem == "does not answer within 0 s"
    receiver.released.set()
    answer = Target(f"{receiver.url}/{SECRET}").post(b"", {})
    assert answer.status is None
    assert SECRET not in answer.problem


def test_nothing_logs_the_path(receiver: HttpReceiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    Target(f"{receiver.url}/{SECRET}").post(b"", {})
    Target(f"http://127.0.0.1:{free_port()}/{SECRET}").post(b"", {})
    assert receiver.posted
    assert "very-secret" not in caplog.text


def test_what_is_shown_of_an_address() -> None:
    assert shown("https://me:pass@hooks.slack.com/services/T0/B0/x?y=z#w") == "https://hooks.slack.com/…"
    assert shown("http://[::1]:8080/x") == "http://[::1]:8080/…"
    assert fingerprint("https://a/1") != fingerprint("https://a/2")
    assert len(fingerprint("https://a/1")) == 16


@pytest.mark.parametrize(
    "url", ["", "hooks.slack.com/x", "ftp://host/x", "https:///x", "http://h:99999/", "http://h/a b"]
)
def test_an_address_that_cannot_be_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"^--webhook needs a whole URL such as https://host/path") as refused:
        checked(url, "--webhook")
    assert not url or url not in str(refused.value)


def test_the_proxy_of_the_environment_is_used(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://me:pw@127.0.0.1:{receiver.port}")
    monkeypatch.setenv("http_proxy", f"http://me:pw@127.0.0.1:{receiver.port}")
    assert Target("http://far.invalid/x").post(b"{}", {}).taken
    (posted,) = receiver.posted
    assert posted.path == "http://far.invalid/x"
    assert posted.headers["proxy-authorization"] == "Basic bWU6cHc="


def test_a_certificate_must_be_trusted(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    new = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names)
    subprocess.run([*new, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    receiver.away()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    receiver.back(context)
    url = f"https://127.0.0.1:{receiver.port}/{SECRET}"
    assert Target(url).post(b"", {}).problem == "presents a certificate that is not trusted"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert Target(url).post(b"", {}).taken


# Retries --------------------------------------------------------------------------------------------------------------


def test_backoff_doubles_up_to_a_limit_and_has_jitter() -> None:
    for failures in range(1, 40):
        whole = min(http_post.LONGEST, http_post.FIRST * 2 ** (failures - 1))
        waits = {http_post.backoff(failures) for _ in range(50)}
        assert len(waits) > 40, "senders that failed together do not come again together"
        assert all(whole / 2 <= seconds <= whole for seconds in waits)
