"""No fault in print passes, and no figure that prints right is accused: over random figures."""

import math

import numpy as np
import pytest
import random_figures
from labjobs.results import figures, print_check, style

FAULTS = random_figures.FAULTS


@pytest.fixture
def right(request):
    """Random figures that print right, of which each fault has its own."""

    def right(index):
        of_each = request.config.getoption("figures") // len(FAULTS)
        for seed in range(index * of_each, (index + 1) * of_each):
            draw = np.random.default_rng(seed)
            known = [venue for venue in style.VENUES.values() if venue.height < math.inf]
            venue = known[draw.integers(len(known))]
            figures.use(venue)
            fig = random_figures.figure(draw, figures)
            if random_figures.shares_ink(fig):  # a fault that nobody has planted
                assert "overlap" in "".join(print_check.check(fig, venue)), seed
            else:
                yield draw, venue, fig

    return right


@pytest.mark.parametrize("index", range(len(FAULTS)), ids=[fault.__name__ for fault in FAULTS])
def test_only_what_is_planted_is_found(right, index):
    for draw, venue, fig in right(index):
        assert print_check.check(fig, venue) == []
        texts, said = FAULTS[index](draw, fig, venue)
        found = print_check.check(fig, venue)
        names = [f'"{line}"' for text in texts for line in text.get_text().splitlines()]
        named = [line for line in found if not texts or any(name in line for name in names)]
        assert any(said in line for line in named), found
        assert named == found
