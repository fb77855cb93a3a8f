"""The exit statuses of a project's commands."""

DONE = 0  # finished, paused as asked, or finished before
FAILED = 1  # failed or diverged
WRONG = 2  # wrong settings or arguments
NOT_UPLOADED = 3  # finished, but not everything has been uploaded yet
ELSEWHERE = 4  # running elsewhere
OTHER_CODE = 5  # finished or begun by other code or data
GIVEN_BACK = 6  # by a host that has gone or is full: the job goes on elsewhere
SIGNALLED = 128  # plus the number of the signal that interrupted it
KILLED = SIGNALLED + 9


def of(error: BaseException) -> int:
    """Return the status of a command that an error, or a signal, ends: what its class says."""
    return int(getattr(error, "status", FAILED))
