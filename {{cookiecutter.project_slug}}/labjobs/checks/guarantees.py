"""The guarantees, each with the function that tests it."""

from collections.abc import Callable

from labjobs.checks import evaluating, resuming, start
from labjobs.checks.answers import Answer
from labjobs.checks.evidence import Evidence
from labjobs.checks.watched import Seen

Guarantee = Callable[[Evidence], Answer]


def seen(answer: Callable[[Seen], Answer]) -> Guarantee:
    """Return a guarantee whose answer depends only on what was seen of a job."""

    def guarantee(evidence: Evidence) -> Answer:
        found = evidence.watched.seen
        return answer(found) if found else Answer(unknown=evidence.unseen)

    return guarantee


GUARANTEES: dict[str, Guarantee] = {
    "exact resume": resuming.exact_resume,
    "the same bits twice": resuming.same_bits,
    "waits for the device": seen(lambda seen: seen.waits),
    "evaluation": evaluating.evaluation,
    "gradients": seen(lambda seen: seen.gradients),
    "measurements": seen(lambda seen: seen.measurements),
    "parts of the state": seen(lambda seen: seen.forgotten),
    "loss at the start": start.loss_at_start,
}
