"""Other jobs, as settings of a job that is derived from them."""

import re

PATTERN = re.compile("[0-9a-f]{12}")
WANTED = "the id of a job, 12 hexadecimal digits"

LAST = ":last"
WEIGHTS_WANTED = f"{WANTED}, or such an id followed by {LAST}"


class JobId(str):
    """The id of a job, such as "1872aa178ea7". A job with such a setting is derived from that job:
    it starts when that one has finished, and is stale when that one is.

    Raises ValueError for any other text.
    """

    def __new__(cls, text: str) -> "JobId":
        """Return the id in a text."""
        if not PATTERN.fullmatch(text):
            raise ValueError(f"must be {WANTED}")
        return super().__new__(cls, text)


class Weights(str):
    """What another job has learnt: "1872aa178ea7" for its best weights, "1872aa178ea7:last" for the
    whole state in which its training ended. A job with such a setting is derived from that job.

    Raises ValueError for any other text.
    """

    def __new__(cls, text: str) -> "Weights":
        """Return the weights that a text names."""
        if not PATTERN.fullmatch(text.removesuffix(LAST)):
            raise ValueError(f"must be {WEIGHTS_WANTED}")
        return super().__new__(cls, text)

    @property
    def job(self) -> JobId:
        """The job that has learnt them."""
        return JobId(self.removesuffix(LAST))

    @property
    def last(self) -> bool:
        """Whether it is the state in which its training ended."""
        return self.endswith(LAST)
