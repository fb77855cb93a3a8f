"""Changes of the text of a project's own files, as students make them."""

from dataclasses import dataclass

from faults import Project

SETTINGS, DATA, MODELS, RUN = "settings.py", "data.py", "models.py", "run.py"


@dataclass(frozen=True)
class Edit:
    """A change of a project's own files: (file, text, text in its place)."""

    changes: tuple[tuple[str, str, str], ...]
    flags: tuple[str, ...] = ()
    """Those of the job that is then run."""

    def make(self, project: Project) -> None:
        """Change the files; each text must be there."""
        for change in self.changes:
            project.edit(*change)
