"""Does a job have the same bits when it is run again, and when it is interrupted and continued?

An interrupted trial is a second one up to its first interruption.
"""

from labjobs.checks.answers import FINE, Answer, Finding
from labjobs.checks.evidence import Evidence
from labjobs.checks.facts import Fact, Kind, difference, first_difference
from labjobs.sources import Place

ON_GPU = "since a GPU gives the same bits only with --deterministic"


def same_bits(evidence: Evidence) -> Answer:
    """Answer whether the same seed gives the same bits again."""
    seen, whole, again = evidence.watched.seen, evidence.whole, evidence.interrupted
    unstable = seen.unstable if seen else ()
    found = _before_interruption(evidence)
    if found is None or unstable:
        return Answer(unstable)
    if evidence.bits_may_differ:
        return Answer(unknown=ON_GPU)
    said = f"run again, {difference(found, whole.facts, again.facts)}"
    if seen and seen.unpredictable:
        finding = Finding(seen.unpredictable[0], f"{said}: random numbers without a seed")
    elif seen and seen.clocks:
        finding = Finding(seen.clocks[0], f"{said}: a clock is read")
    else:
        finding = Finding(whole.resumed_at, said)
    return Answer((finding,))


def exact_resume(evidence: Evidence) -> Answer:
    """Answer whether a job that is interrupted and continued ends with the same bits."""
    whole, parts = evidence.whole, evidence.interrupted
    if parts.failure:
        line = f"interrupted and continued, it fails: {parts.failure.line}"
        return Answer((Finding(parts.failure.place or whole.resumed_at, line),))
    if not parts.stops:
        return Answer(unknown="since it trains in no job.steps(…)")
    if _before_interruption(evidence):
        return Answer(unknown="since the same seed does not give the same bits")
    found = first_difference(whole.facts, parts.facts)
    if found is None:
        return FINE
    if evidence.bits_may_differ:
        return Answer(unknown=ON_GPU)
    said = f"continued, {difference(found, whole.facts, parts.facts)}"
    place, why = _culprit(evidence)
    return Answer((Finding(place, f"{said}{_states(evidence)}{why}"),))


def _before_interruption(evidence: Evidence) -> Fact | None:
    """The first fact that differs before the trial was interrupted."""
    whole, again = evidence.whole, evidence.interrupted
    found = first_difference(whole.facts, again.facts)
    if found is None or again.failure:
        return None
    if not again.stops:
        return found
    first = again.stops[0]
    return found if (found.step, found.kind) <= (first.step, Kind.TRAINING) else None


def _states(evidence: Evidence) -> str:
    """Which parts are not the same at the end, in words."""
    one, other = evidence.whole.facts, evidence.interrupted.facts
    differ = [fact.name for fact in one if fact.kind == Kind.STATE and one[fact] != other.get(fact)]
    return f" (not the same at the end: {', '.join(differ)})" if differ else ""


def _culprit(evidence: Evidence) -> tuple[Place | None, str]:
    """The line that is the likely cause, and why."""
    seen = evidence.watched.seen
    if seen and seen.unstable:
        place, text = seen.unstable[0]
        return place, f": {text}"
    if seen and seen.changes:
        change = seen.changes[0]
        return change.place, f": {change.text}"
    return evidence.whole.resumed_at, ": something is missing in job.resume(…)"
