"""TLS to the monitor: which files are used, for ranks, launchers and commands alike."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from rankwatch.contract import env


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM format; None: the authorities that the system trusts, and no certificate of our own."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> TlsFiles:
        """Those that the environment names."""
        return cls(*(variables.get(name) or None for name in (env.CA_FILE, env.CLIENT_CERTIFICATE, env.CLIENT_KEY)))

    def context(self) -> ssl.SSLContext:
        """A client's context.

        Raises:
            OSError: a file cannot be read or is no certificate or key; the message names the files.
        """
        try:
            made = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                made.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            # ssl does not name the file that it could not read.
            raise OSError(f"{error} ({', '.join(filter(None, (self.ca, self.certificate, self.key)))})") from error
        return made
