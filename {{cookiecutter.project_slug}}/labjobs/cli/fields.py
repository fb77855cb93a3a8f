"""What a field of a settings dataclass may say about itself, kept as the field's metadata."""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from labjobs.cli.metrics import Metric


def setting(
    default: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    names: str = "",
    others: str = "",
    metric: Mapping[str, Metric] | None = None,
    replaces: str = "",
    formerly: str = "",
    alone: Any = None,
    only_with: Collection[str] = (),
) -> Any:
    """Return a dataclass field with a default, and with rules that the command line checks.

    Args:
        default: Its value unless the command line names another.
        above, at_least, below, at_most: The range of a number, or of each number in a tuple.
        names: A registry, such as "models.MODELS"; the value must be one of its names.
        others: Which other values are allowed, in words; the project's own code checks them.
        metric: METRICS; the value must be "none" or "val_" and a name declared there.
        replaces: Another setting, which does not count if this one is above 0.
        formerly: The name that this setting had when the first jobs ran.
        alone: The value of the flag if it is given without a value.
        only_with: For flags of the engine: a script has the flag only if it has one of these
            settings.
    """
    metadata = {
        "above": above,
        "at_least": at_least,
        "below": below,
        "at_most": at_most,
        "names": names,
        "others": others,
        "metric": metric,
        "replaces": replaces,
        "formerly": formerly,
        "alone": alone,
        "only_with": only_with,
    }
    return field(default=default, metadata=metadata)


def added(default: Any, *, neutral: Any, **rules: Any) -> Any:
    """Return a field for a setting that was added after the first jobs had run.

    `neutral` is the value with which the code does what it did before, such as 0.0 for a dropout.
    Jobs with that value keep their ids, so it must never change. `rules` are those of `setting`.
    """
    later = setting(default, **rules)
    return field(default=default, metadata={**later.metadata, "neutral": neutral})
