"""Does evaluation leave training alone, and does it give the same result when it is repeated?"""

from collections.abc import Sequence

from labjobs.checks.answers import Answer, Finding, some
from labjobs.checks.evaluation import Seen
from labjobs.checks.evidence import Evidence
from labjobs.checks.facts import Kind, first_difference


def evaluation(evidence: Evidence) -> Answer:
    """Answer whether evaluation leaves training alone and gives the same result again."""
    seen = evidence.watched.seen
    if not seen:
        return Answer(unknown=evidence.unseen)
    if seen.in_background:
        return Answer(unknown="since it runs in the background")
    if not seen.evaluations:
        return Answer(unknown="since no validation or test batches are read")
    changes = dict.fromkeys(_changes(each) for each in seen.evaluations if each.changed)
    return Answer((*changes, *_random(seen.evaluations, evidence)))


def _changes(seen: Seen) -> Finding:
    place = seen.changes.outer if seen.changes else seen.reads
    return Finding(
        place, f"evaluation changes {some(seen.changed)}; is the model in training mode?"
    )


def _random(evaluations: Sequence[Seen], evidence: Evidence) -> Sequence[Finding]:
    """What is random in evaluation, in at most one line."""
    metrics = evidence.watched.facts
    whole = {fact: value for fact, value in evidence.whole.facts.items() if fact in metrics}
    differs = first_difference(whole, metrics)
    lines = next((each.draws for each in evaluations if each.draws), None)
    place = lines.outer if lines else evaluations[0].reads
    within = f": random numbers are drawn{lines.within}" if lines else ""
    if differs and differs.kind != Kind.TRAINING:
        return [
            Finding(place, f"{differs.name} is not the same when it is evaluated again{within}")
        ]
    if any(each.drew for each in evaluations):
        return [Finding(place, f"evaluation changes the random numbers of training{within}")]
    return []
