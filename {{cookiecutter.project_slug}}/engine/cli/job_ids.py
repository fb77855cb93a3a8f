"""The id of another job, as a setting of a job that is derived from it."""

import re

PATTERN = re.compile("[0-9a-f]{12}")
WANTED = "the id of a job, 12 hexadecimal digits"


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
