"""What the trials of a job have shown."""

from dataclasses import dataclass
from typing import Any

from labjobs.checks.trials import Outcome
from labjobs.job.folder import JobFolder


@dataclass(frozen=True)
class Evidence:
    """The outcomes of the trials of a job."""

    job: JobFolder[Any]
    whole: Outcome
    interrupted: Outcome
    watched: Outcome

    @property
    def bits_may_differ(self) -> bool:
        """Whether the job runs on a device that may give different bits each time."""
        return self.whole.device != "cpu" and not self.job.runtime.deterministic

    @property
    def unseen(self) -> str:
        """Why the job could not be looked at; empty if it was."""
        failure = self.watched.failure
        return f"since looking at the job failed: {failure.line}" if failure else ""
