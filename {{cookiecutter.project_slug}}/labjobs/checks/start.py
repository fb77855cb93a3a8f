"""Does a metric have the value at the start that METRICS declares?"""

from labjobs.checks.answers import Answer, Finding
from labjobs.checks.evidence import Evidence
from labjobs.checks.facts import Fact, Kind
from labjobs.cli.metrics import Metric, value_at_start

SLACK = 0.5
"""The allowed relative difference, since only a few examples are measured, with weights of any
scale."""


def loss_at_start(evidence: Evidence) -> Answer:
    """Answer whether the first step measures what is declared."""
    declared: dict[str, Metric] = dict(evidence.job.metrics)
    wanted = {name: metric for name, metric in declared.items() if metric.at_start is not None}
    if not wanted:
        return Answer(unknown="since no metric in METRICS has at_start=")
    if getattr(evidence.job.settings, "init_from", None):
        return Answer(unknown="since it starts from the weights of another job")
    found = []
    for name, metric in wanted.items():
        measured = evidence.whole.facts.get(Fact(1, Kind.TRAINING, f"train_{name}"))
        expected = value_at_start(metric, evidence.whole.spec)
        if measured is None or expected is None:
            missing = f"no {name} in the first step" if measured is None else "no such entry"
            return Answer(unknown=f"since there is {missing} ({metric.at_start})")
        if abs(float(measured) - expected) > SLACK * abs(expected):
            text = f"train_{name} begins at {float(measured):.4g}, and not at about {expected:.4g}"
            found.append(Finding(evidence.whole.resumed_at, f"{text} ({metric.at_start})"))
    return Answer(tuple(found))
