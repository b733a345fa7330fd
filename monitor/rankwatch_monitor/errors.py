"""Why the monitor does not answer about a job; ``api.problems`` makes HTTP answers of these."""


class UnknownJobError(LookupError):
    """There is no such job; a launcher that hears it registers again."""


class TooManyError(Exception):
    """A limit on how much the monitor holds was reached; the text says which."""

    counted_as = "too_many_jobs"


class TooManyRanksError(TooManyError):
    """The ranks of one job, or of all jobs together, are more than the monitor holds."""

    counted_as = "too_many_ranks"


class HeldElsewhereError(Exception):
    """The job is another monitor's, or not ours just now; the text says whose, and what to do."""

    counted_as = "held_elsewhere"
