"""The template that this engine comes from; its CHANGELOG.md says what each version changed."""

from labjobs.paths import CODE

VERSION = "1.0.0"

COMMIT = CODE / "labjobs" / "commit.txt"
"""The template's commit, written when the project was made or updated."""


def version() -> str:
    """Return the version and the commit, such as `1.0.0 (3f2a9c1d04be)`."""
    commit = COMMIT.read_text().strip() if COMMIT.exists() else ""
    return f"{VERSION} ({commit[:12] or 'commit unknown'})"
