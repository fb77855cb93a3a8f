"""Other jobs, as settings of a job that is derived from them."""

import re

PATTERN = re.compile("[0-9a-f]{12}")
WANTED = "the id of a job, 12 hexadecimal digits"

LAST = ":last"
WEIGHTS_WANTED = f"{WANTED}, or such an id followed by {LAST}"


class JobId(str):
    """The id of a job, such as "1872aa178ea7". A job with such a setting is derived from the other
    job: it starts when the other job has finished, and is stale when the other job is.

    Raises ValueError for any other text.
    """

    def __new__(cls, text: str) -> "JobId":
        """Return the id in a text."""
        if not PATTERN.fullmatch(text):
            raise ValueError(f"must be {WANTED}")
        return super().__new__(cls, text)


class Weights(str):
    """The weights of another job: "1872aa178ea7" for its best weights, "1872aa178ea7:last" for the
    whole state at the end of its training. A job with such a setting is derived from that job.

    Raises ValueError for any other text.
    """

    def __new__(cls, text: str) -> "Weights":
        """Return the weights that the text names."""
        if not PATTERN.fullmatch(text.removesuffix(LAST)):
            raise ValueError(f"must be {WEIGHTS_WANTED}")
        return super().__new__(cls, text)

    @property
    def job(self) -> JobId:
        """The job that they come from."""
        return JobId(self.removesuffix(LAST))

    @property
    def last(self) -> bool:
        """Whether they stand for the whole state at the end of its training."""
        return self.endswith(LAST)
