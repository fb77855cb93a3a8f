"""Trackio: a run for each attempt, in the project's database in Trackio's own folder.

The key of a row has the number of its line in the journal, so no row is added twice.
"""

import shutil
from datetime import UTC, datetime
from typing import Any

from labjobs.tracking.copies import Copy


def write(copy: Copy) -> None:
    """Send what an attempt has measured."""
    from trackio.sqlite_storage import SQLiteStorage

    project = copy.project
    for run in SQLiteStorage.get_run_records(project):
        if run["name"].endswith(f" {copy.end}") and run["id"] != copy.journal:
            SQLiteStorage.delete_run(project, run["name"], run["id"])  # --force has replaced it
    rows = [row for row in copy.rows() if row["metrics"] or row["images"]]
    SQLiteStorage.bulk_log(
        project,
        copy.title,
        [row["metrics"] | _kept(copy, row) for row in rows],
        steps=[row["step"] for row in rows],
        timestamps=[datetime.fromtimestamp(row["time"], UTC).isoformat() for row in rows],
        config=copy.config,
        log_ids=[f"{copy.journal}-{row['line']}" for row in rows],
        run_id=copy.journal,
    )


def _kept(copy: Copy, row: dict[str, Any]) -> dict[str, Any]:
    """The images of a row as Trackio names them, each copied once to where it has its own."""
    from trackio.media.utils import get_project_media_path
    from trackio.utils import MEDIA_DIR

    found = {}
    for name, image in row["images"].items():
        place = get_project_media_path(copy.project, copy.title, row["step"]) / image.name
        if not place.exists():  # else half of it could stay
            shutil.copy(image, part := place.with_suffix(".part"))
            part.rename(place)
        path = str(place.relative_to(MEDIA_DIR))
        found[name] = {"_type": "trackio.image", "file_path": path, "caption": None}
    return found
