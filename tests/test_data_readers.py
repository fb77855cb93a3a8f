"""What a finished job says of changed data, by the reader: docs/data-readers.md has the table."""

import pytest
from data_readers import available, rows
from repository import REPOSITORY


@pytest.mark.full
@pytest.mark.parametrize("name", ["Parquet", "spawned pool"])
def test_a_change_of_data_is_noticed_or_cannot_be_told(project, name, tmp_path):
    if name not in available():
        pytest.skip(f"the package for {name} is missing, or the rights to mount it")
    table = (REPOSITORY / "docs" / "data-readers.md").read_text().splitlines()
    for line in rows(project, name, tmp_path):
        assert line in table
