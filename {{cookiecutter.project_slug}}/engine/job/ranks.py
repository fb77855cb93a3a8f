"""Which of a job's processes this one is, as torchrun says in the environment.

Source: docs.pytorch.org/docs/stable/elastic/run.html, Environment Variables.
"""

import os
from typing import NamedTuple


class Rank(NamedTuple):
    """The `number` of a process, from 0, of `size`; `local` is its number on its machine."""

    number: int
    size: int
    local: int


ALONE = Rank(0, 1, 0)
"""The rank of a job's only process."""


def mine() -> Rank:
    """Return this process's rank; ALONE if the job has no other processes."""
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not all(found) or int(found[1]) == 1:
        return ALONE
    return Rank(*map(int, found))
