"""Where the template is; a module of its own, since several folders of tests have a conftest."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
