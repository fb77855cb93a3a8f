"""The command line of a settings dataclass. Standard library only; imports no other package.

    fields      setting() and added(): what a field of Settings may say about itself
    spans       Span: a length in steps or in epochs
    job_ids     JobId: another job, which a job is derived from; Weights: that job's weights
    metrics     Metric: what a project measures
    values      reading a value from its text, and writing it
    registries  the names in a registry, read without importing its module
    docs        headings and help texts, from the source of a dataclass
    flags       the fields of a dataclass as flags; what is wrong with one, in one line
    parser      from the words of a command to settings and runtime

The names that settings.py needs can be imported from here.
"""

from labjobs.cli.fields import added, setting
from labjobs.cli.job_ids import JobId, Weights
from labjobs.cli.metrics import Metric
from labjobs.cli.spans import Span
from labjobs.errors import SettingsError

__all__ = ["JobId", "Metric", "SettingsError", "Span", "Weights", "added", "setting"]
