"""The monitor's settings: name, default, unit and meaning in one place; flags and variables are derived from them."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from rankwatch.cli.parser import Parser, argument_type
from rankwatch.contract import records
from rankwatch.contract.files import check_own, private_folder
from rankwatch.contract.policy import Policy
from rankwatch.contract.schema import SWITCH, choice, setting, text, whole
from rankwatch_monitor.publish import http_post
from rankwatch_monitor.publish.wandb import publisher as wandb
from rankwatch_monitor.publish.wandb import rows as wandb_rows
from rankwatch_monitor.publish.webhook import bodies
from rankwatch_monitor.publish.webhook import publisher as webhook

MANY: Final = 2**31


def _default_database() -> str:
    place = records.state_place(os.environ)
    if place.moved:
        try:
            private_folder(place.folder)
        except OSError as error:
            raise ValueError(f"{place.moved}, and {place.folder} cannot be used: {error}; give --database") from error
    else:
        try:
            check_own(place.folder)
        except OSError as error:
            raise ValueError(f"the usual place of the database cannot be used: {error}; give --database") from error
    return str(place.folder / "rankwatch.db")


@dataclass(frozen=True, slots=True)
class Settings:
    """The monitor's settings. Each field is a flag (``--database``) and a variable (``RANKWATCH_MONITOR_DATABASE``)."""

    host: str = setting("127.0.0.1", text("ADDRESS"), "address to listen on; any other than loopback requires a token")
    port: int = setting(9560, whole(0, 65535, "PORT"), "port to listen on; 0 takes any free one")
    listen_fd: int | None = setting(
        None,
        whole(0, MANY, "FD"),
        "serve on this inherited socket",
    )
    token: str | None = setting(None, text("TOKEN"), "token with full access (also RANKWATCH_TOKEN)")
    read_token: str | None = setting(None, text("TOKEN"), "token with read access only")
    ingest_token: str | None = setting(None, text("TOKEN"), "token for sending telemetry only")
    no_token: bool = setting(
        False,
        SWITCH,
        "allow everything to every user of this machine; without it a monitor makes tokens for its user",
    )
    database: str = setting("", text("URL"), "SQLAlchemy URL, or a path for SQLite; 'none' stores nothing")
    shared_as: str | None = setting(
        None,
        text("NAME"),
        "share the database with other monitors under this unique name (unchanged by a restart)",
    )
    lease: int = setting(8, whole(0, MANY, "S"), "seconds until a job's lease expires, unless renewed")
    retention_days: int = setting(
        90,
        whole(0, MANY, "DAYS"),
        "days after the last report of a job until its stored data are deleted; 0 keeps them",
    )
    read_only: str | None = setting(
        None,
        text("FILE"),
        "serve what this SQLite file holds, from a copy",
    )
    idle_exit: int = setting(
        0, whole(0, MANY, "S"), "exit after so many seconds without a request or an open page; 0: never"
    )
    record: str | None = setting(
        None, text("FILE"), "record all events for rankwatch replay; compressed if the name ends in .gz or .zst"
    )
    ready_file: str | None = setting(
        None, text("FILE"), "write the address and pid to this file as JSON once listening"
    )
    parent_pid: int | None = setting(None, whole(1, MANY, "PID"), "exit when this process has exited")
    tls_cert: str | None = setting(None, text("FILE"), "certificate (chain) in PEM format; serves HTTPS")
    tls_key: str | None = setting(None, text("FILE"), "private key of the certificate in PEM format")
    wandb_project: str | None = setting(
        None, text("NAME"), "publish every job to this project of Weights & Biases; default: none"
    )
    wandb_entity: str | None = setting(
        None, text("NAME"), "team or user that owns the project; default: that of the account"
    )
    wandb_mode: str | None = setting(
        None, text("MODE"), "online, offline (files for wandb sync) or disabled; default: WANDB_MODE, else online"
    )
    wandb_dir: str | None = setting(
        None, text("FOLDER"), "directory of W&B's files; default: WANDB_DIR, else the working directory"
    )
    wandb_series: str = setting(
        wandb_rows.CURATED, choice(wandb_rows.SERIES, "WHICH"), "numbers of a run: curated (about fifteen) or all"
    )
    webhook: tuple[str, ...] = setting(
        (),
        text("[FORMAT=]URL"),
        "post incidents, stragglers and ends of jobs to this URL; may be repeated (in the variable: with spaces)",
        env=("RANKWATCH_MONITOR_WEBHOOKS",),
    )
    webhook_format: str = setting(
        "slack", text("FORMAT"), "body of webhooks without a format of their own: slack or json"
    )
    webhook_events: str = setting(
        "all",
        text("EVENTS"),
        "events of webhooks, comma-separated: incident, straggler, job, incident_opened, ...",
    )
    webhook_secret: str | None = setting(
        None, text("SECRET"), "sign webhooks (Standard Webhooks) with this whsec_... secret"
    )
    external_url: str | None = setting(None, text("URL"), "URL of this monitor for users, for links in webhooks")
    allowed_host: tuple[str, ...] = setting(
        (),
        text("NAME"),
        "further name under which the page may be opened; may be repeated (in the variable: with spaces)",
    )
    policy: str | None = setting(
        None,
        text("FILE"),
        'policy of new jobs: a JSON file, or JSON such as {"section_timeouts": {"step": 180}}',
    )
    log_level: str = setting(
        "info", choice(("debug", "info", "warning", "error"), "LEVEL"), "debug, info, warning or error"
    )

    @property
    def loopback(self) -> bool:
        """Whether it listens on loopback only."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def any_token(self) -> bool:
        """Whether one is configured."""
        return bool(self.token or self.read_token or self.ingest_token)

    def with_tokens(self) -> Settings:
        """These settings, with new tokens where none is configured and not all is to be allowed."""
        if self.any_token or self.no_token or self.read_only is not None:
            return self
        return replace(self, token=secrets.token_urlsafe(24), ingest_token=secrets.token_urlsafe(24))

    def job_policy(self) -> Policy:
        """The policy of jobs that are new and have set nothing.

        Raises:
            ValueError: the file cannot be read, or a value is invalid.
        """
        if self.policy is None:
            return Policy()
        try:
            text = self.policy if self.policy.lstrip().startswith("{") else Path(self.policy).read_text()
            return Policy().changed(json.loads(text))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"--policy: {error}") from None

    def checked(self) -> Settings:
        """Validate.

        Raises:
            ValueError: a setting is invalid or conflicts with another; the message names it and the fix.
        """
        if not self.loopback and not self.token:
            raise ValueError(
                f"listening on {self.host} needs a token, or anyone could stop jobs: set RANKWATCH_TOKEN or --token "
                "(for a new one: python -c 'import secrets; print(secrets.token_urlsafe())'), or listen on 127.0.0.1"
            )
        if self.no_token and self.any_token:
            raise ValueError("--no-token goes with no token: leave it out, or the tokens")
        if self.shared_as is not None and not (self.token or self.no_token):
            raise ValueError(
                "monitors that share a database need the same token, which none can make: set RANKWATCH_TOKEN or "
                "--token, or allow everything to every user of this machine with --no-token"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls-cert and --tls-key go together: set both or none")
        for flag, file in (("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            if file and not Path(file).is_file():
                raise ValueError(f"{flag}: there is no file {file}")
        if self.ready_file and not os.access(Path(self.ready_file).parent, os.W_OK | os.X_OK):
            raise ValueError(f"--ready-file: cannot write {self.ready_file}; its folder must exist and be writable")
        self.job_policy()
        if self.read_only is not None and not self.read_token:
            raise ValueError(
                "--read-only needs a --read-token, which opens it; 'rankwatch open --database FILE' makes one"
            )
        self._check_sharing()
        self._check_wandb()
        self._check_webhooks()
        return self

    def _check_sharing(self) -> None:
        if self.read_only is not None and (self.shared_as is not None or self.record is not None):
            raise ValueError("--read-only only shows what a file holds: it goes with neither --shared-as nor --record")
        if self.shared_as is not None and self.database == "none":
            raise ValueError("--shared-as shares a database with other monitors, but --database none stores nothing")
        if self.shared_as is not None and not (self.shared_as.isprintable() and 0 < len(self.shared_as) <= 256):
            raise ValueError("--shared-as must be a name of 1 to 256 printable characters")
        if self.lease < 3:
            raise ValueError(
                f"--lease must be at least 3 (seconds), not {self.lease}: a shorter one ends while the database is busy"
            )

    def _check_webhooks(self) -> None:
        webhook.receivers(self.webhook, self.webhook_format)
        webhook.events(self.webhook_events)
        if self.webhook_secret is not None:
            bodies.secret_key(self.webhook_secret)
        if self.external_url is not None:
            http_post.checked(self.external_url, "--external-url")
        for each in fields(self):
            if not each.name.startswith("webhook_") or self.webhook:
                continue
            if getattr(self, each.name) != each.default:
                name = each.name.removeprefix("webhook_")
                raise ValueError(f"--webhook-{name} is about webhooks, but there is none: name one with --webhook URL")

    def _check_wandb(self) -> None:
        if self.wandb_mode is not None and self.wandb_mode not in wandb.MODES:
            raise ValueError(f"--wandb-mode must be {', '.join(wandb.MODES[:-1])} or disabled, not {self.wandb_mode!r}")
        given = [name for name in ("entity", "mode", "dir") if getattr(self, f"wandb_{name}")]
        if given and not self.wandb_project and self.wandb_mode != "disabled":
            raise ValueError(
                f"--wandb-{given[0]} configures Weights & Biases, but there is no project: name it with "
                f"--wandb-project or {variable('wandb_project')}"
            )
        if self.wandb_dir:
            _make_folder("--wandb-dir", Path(self.wandb_dir))


def _make_folder(flag: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{flag}: cannot make the folder {folder}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{flag}: cannot write into {folder}")


def parser() -> argparse.ArgumentParser:
    """The command line of ``rankwatch monitor``."""
    made = Parser(
        prog="rankwatch monitor",
        description="Serve the monitor: telemetry in, verdicts, page, API and directives for launchers out.",
    )
    for each in fields(Settings):
        kind, flag = each.metadata["kind"], "--" + each.name.replace("_", "-")
        default = "" if each.default in (None, "", (), False) else f" (default {each.default})"
        words = f"{each.metadata['meaning']}{default}; also {variable(each.name)}"
        if kind is SWITCH:
            made.add_argument(flag, action="store_true", default=None, help=words)
        else:
            action = "append" if each.default == () else "store"
            made.add_argument(flag, metavar=kind.metavar, type=argument_type(kind), action=action, help=words)
    return made


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read settings from flags, else from the environment, else the defaults.

    Raises:
        ValueError: a value is invalid.
    """
    given = {name: value for name, value in vars(parser().parse_args(argv)).items() if value is not None}
    values: dict[str, Any] = {}
    for each in fields(Settings):
        raw = environment.get(variable(each.name))
        if each.name in given:
            values[each.name] = tuple(given[each.name]) if each.default == () else given[each.name]
        elif raw and each.default == ():
            values[each.name] = tuple(raw.split())
        elif raw:
            try:
                values[each.name] = each.metadata["kind"].read_text(raw)
            except ValueError as error:
                raise ValueError(f"{variable(each.name)} {error}") from None
    values.setdefault("token", environment.get("RANKWATCH_TOKEN") or None)
    if "wandb_mode" not in values and values.get("wandb_project"):
        own = environment.get("WANDB_MODE")
        values["wandb_mode"] = own if own in wandb.MODES else "online"
    if not values.get("database"):
        values["database"] = _default_database()
    return Settings(**values).checked()


def variable(name: str) -> str:
    """The environment variable of a setting."""
    (own,) = Settings.__dataclass_fields__[name].metadata["environment"] or (f"RANKWATCH_MONITOR_{name.upper()}",)
    return str(own)
