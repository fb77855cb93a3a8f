"""Print the path of the shell part, which run.sh sources."""

from pathlib import Path

print(Path(__file__).with_name("sweep.sh"))
