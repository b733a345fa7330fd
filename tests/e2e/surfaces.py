"""The same facts of one real job as each surface states them: API, list, metrics, terminal, report, launcher, page."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from playwright.sync_api import Browser

from e2e.training import Training
from rankwatch.cli.main import main
from support.console import shown
from support.waiting import wait_for

PATIENCE: Final = 20.0
"""Seconds in which a surface agrees with the API; the page is told of a change within a second."""

_ON_PAGE: Final = """() => {
  const text = (each) => each?.innerText.trim() ?? "";
  const facts = (of) => Object.fromEntries([...document.querySelectorAll(`${of} > div`)].map((each) =>
    [text(each.querySelector("dt")), text(each.querySelector("dd")?.firstChild?.nodeType === 3
      ? {innerText: each.querySelector("dd").firstChild.data} : each.querySelector("dd"))]));
  return {
    state: document.querySelector(".head .state, .verdict > h2 .state")?.textContent.trim() ?? "",
    title: document.title, facts: facts("dl.facts"), goodput: text(document.querySelector(".goodput h2 b")),
    ranks: Object.fromEntries([...document.querySelectorAll(".grid .legend button")].map((each) =>
      [each.innerText.replace(/\\s*\\d+\\s*$/, "").trim(), Number(each.querySelector("b").innerText)])),
  };
}"""
_ON_LIST: Final = """(id) => {
  const rows = [...document.querySelectorAll("ul.jobs > li")];
  const row = rows.find((each) => each.querySelector("a").hash === `#/jobs/${id}`);
  const figure = (label) => [...row.querySelectorAll(".figure")]
    .find((each) => each.querySelector("small")?.innerText === label)?.querySelector("b").innerText ?? "";
  const state = row.querySelector(".state").textContent.trim();
  return {state, step: figure("step") || figure("last step"), goodput: figure("goodput")};
}"""


_ENDED: Final = {"DONE": "finished", "STOPPED": "stopped", "FAILED": "failed"}
"""The state of a job by the word of the launcher's last line."""


class Facts(NamedTuple):
    """What a surface states; None: it does not state this."""

    state: str | None = None
    attempt: int | None = None
    step: int | None = None
    goodput: str | None = None
    """In percent with one digit; empty: not known."""
    ranks: dict[str, int] | None = None
    """How many ranks are in each state."""

    def differs(self, before: Facts, after: Facts) -> list[str]:
        """How it differs from the API, read before and after it; a moving figure may be any between the two."""
        found = []
        for name in ("state", "attempt", "ranks"):
            own, allowed = getattr(self, name), (getattr(before, name), getattr(after, name))
            if own is not None and own not in allowed:
                found.append(f"{name}: {own!r}, not {allowed[1]!r}")
        if self.step is not None and (before.step is None or after.step is None or before.attempt != after.attempt):
            found += [] if self.step in (before.step, after.step) else [f"step: {self.step}, not {after.step}"]
        elif self.step is not None and not before.step <= self.step <= after.step:  # type: ignore[operator]
            found.append(f"step: {self.step}, not from {before.step} to {after.step}")
        if self.goodput is not None and self.goodput not in _between(before.goodput or "", after.goodput or ""):
            found.append(f"goodput: {self.goodput!r}, not {after.goodput!r}")
        return found


def _between(one: str, other: str) -> list[str]:
    if not one or not other:
        return [one, other]
    low, high = sorted((round(10 * float(one)), round(10 * float(other))))
    return [f"{each / 10:.1f}" for each in range(low, high + 1)]


def percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f}"


def _of_json(job: dict[str, Any], ranks: dict[str, int] | None = None) -> Facts:
    return Facts(job["state"], job["attempt"], job["iteration"], percent(job["goodput"]), ranks)


def _number(text: str) -> int | None:
    digits = re.sub(r"\D", "", text)
    return int(digits) if digits else None


def _figure(text: str) -> str:
    found = re.search(r"\d+\.\d", text)
    return found.group() if found else ""


class Surfaces:
    """Reads one job everywhere."""

    def __init__(self, training: Training, browser: Browser) -> None:
        assert training.api is not None
        self.training, self.job = training, training.job
        self.url = str(training.api.base_url).rstrip("/")
        self._context = browser.new_context(viewport={"width": 1400, "height": 1000})
        self._context.add_init_script("localStorage.setItem('rankwatch.open', 'details')")
        self._page, self._fleet = self._context.new_page(), self._context.new_page()
        self.broken: list[str] = []
        for page in (self._page, self._fleet):
            page.on("pageerror", lambda error: self.broken.append(f"{error}\n{error.stack}"))
        self._page.goto(f"{self.url}/#/jobs/{self.job}")
        self._fleet.goto(f"{self.url}/#/")

    def close(self) -> None:
        self._context.close()

    # One reader a surface ---------------------------------------------------------------------------------------------

    def api(self) -> Facts:
        api = self.training.api
        assert api is not None
        counts = Counter(row["state"] for row in api.ranks(self.job))
        return _of_json(api.job(self.job), dict(counts))

    def list(self) -> Facts:
        assert self.training.api is not None
        (job,) = [each for each in self.training.api.jobs() if each["id"] == self.job]
        return _of_json(job)

    def goodput(self) -> Facts:
        assert self.training.api is not None
        return Facts(goodput=percent(self.training.api.read(f"/jobs/{self.job}/goodput")["ratio"]))  # type: ignore[arg-type]

    def metrics(self) -> Facts:
        assert self.training.api is not None
        own = [
            (name, labels, value)
            for (name, pairs), value in self.training.api.metrics().items()
            if (labels := dict(pairs)).get("job") == self.job
        ]
        states = [labels["state"] for name, labels, value in own if name == "rankwatch_job_state" and value]
        assert len(states) == 1, f"it is in one state: {states}"
        single = {name: value for name, labels, value in own if set(labels) == {"job"}}
        ranks = {labels["state"]: int(value) for name, labels, value in own if name == "rankwatch_job_ranks" and value}
        step = single.get("rankwatch_job_iteration")
        return Facts(
            states[0],
            int(single["rankwatch_job_attempt"]),
            None if step is None else int(step),
            percent(single.get("rankwatch_goodput_ratio")),
            ranks,
        )

    def status_json(self) -> Facts:
        found = json.loads(self.command("status", "--json"))
        return _of_json(found["job"], {state: len(members) for state, members in found["ranks"].items()})

    def status(self) -> Facts:
        return self._of_text(self.command("status"))

    def report(self) -> Facts:
        return self._of_text(self.command("report"))

    def page(self) -> Facts:
        shown = self._page.evaluate(_ON_PAGE)
        if not shown["title"].startswith(f"{shown['state']}: "):  # it follows within a frame
            return Facts(f"{shown['state']} under the title {shown['title']}")
        facts, ranks = shown["facts"], shown["ranks"]
        if slow := ranks.pop("slow", 0):  # the grid marks what slows the job among the ranks that run
            ranks["running"] = ranks.get("running", 0) + slow
        step = _number(facts.get("Step") or facts.get("Final step") or "")
        return Facts(shown["state"], _number(facts["Attempt"]), step, _figure(shown["goodput"]), ranks or None)

    def page_list(self) -> Facts:
        shown = self._fleet.evaluate(_ON_LIST, self.job)
        return Facts(shown["state"], None, _number(shown["step"]), _figure(shown["goodput"]))

    def console(self) -> Facts:
        """The launcher's last lines, once it has ended."""
        printed = self.training.launchers[-1].printed()
        word, said = next(((e.word, e.text) for e in reversed(shown(printed)) if e.word in _ENDED), ("", ""))
        assert word, printed[-3000:]
        step = re.search(r"step ([\d,]+)", said)
        return Facts(_ENDED[word], None, _number(step.group(1)) if step else None)

    def command(self, name: str, *flags: str) -> str:
        """What a command of this process prints."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([name, self.job, *flags, "--monitor", self.url])
        return printed.getvalue()

    def _of_text(self, printed: str) -> Facts:
        text = " ".join(printed.split())
        state = re.search(r"is ([A-Z]+(?: STEP)?)\b", text)
        step, attempt = re.search(r"\bstep (\d+)(?: at|,)", text), re.search(r"attempt (\d+)", text)
        goodput = re.search(r"GOODPUT ([\d.]+) %", text)
        assert state, printed
        assert attempt, printed
        counts = (
            dict(re.findall(r"^  ([a-z]+) +(\d+)  \(", printed, re.M)) if re.search(r"^RANKS", printed, re.M) else None
        )
        return Facts(
            state.group(1).lower(),
            int(attempt.group(1)),
            int(step.group(1)) if step else None,
            goodput.group(1) if goodput else "",
            None if counts is None else {name: int(number) for name, number in counts.items()},
        )

    # Comparing --------------------------------------------------------------------------------------------------------

    def agree(self, saying: str, *, ended: bool = False) -> None:
        """Every surface states what the API states."""
        readers: list[Callable[[], Facts]] = [
            *(self.list, self.goodput, self.metrics, self.status_json, self.status, self.report),
            *(self.page, self.page_list),
            *([self.console] if ended else []),
        ]
        wrong = {}
        for read in readers:
            last: list[str] = []

            def agrees(read: Callable[[], Facts] = read, last: list[str] = last) -> bool:
                before = self.api()
                own = read()
                after = self.api()
                last[:] = own.differs(before, after)
                return not last

            try:
                wait_for(agrees, read.__name__, PATIENCE)
            except AssertionError:
                wrong[read.__name__] = last
        assert not wrong, f"{saying}: {wrong}"
        assert not self.broken, f"{saying}: {self.broken}"


@contextlib.contextmanager
def surfaces(training: Training, browser: Browser) -> Iterator[Surfaces]:
    made = Surfaces(training, browser)
    try:
        yield made
    finally:
        made.close()
