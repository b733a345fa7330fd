"""Errors of requests; ``http.problems`` maps them to HTTP responses."""


class UnknownJobError(LookupError):
    """There is no such job; a launcher that receives this registers again."""


class TooManyError(Exception):
    """A limit on jobs was reached; the message states which."""

    counted_as = "too_many_jobs"


class TooManyRanksError(TooManyError):
    """The ranks of one job, or of all jobs together, exceed a limit."""

    counted_as = "too_many_ranks"


class HeldElsewhereError(Exception):
    """This monitor does not own the job now; the message names the owner and what to do.

    ``status`` is 503 where another monitor should be asked, which a proxy then tries, else 429: the job is being
    acquired here, and would be acquired by the other monitor as well.
    """

    counted_as = "held_elsewhere"

    def __init__(self, message: str, *, acquiring: bool = False) -> None:
        super().__init__(message)
        self.status = 429 if acquiring else 503


class RevokedError(Exception):
    """The token of a request was revoked while it was answered."""
