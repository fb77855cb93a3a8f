"""No fault in print passes, and no figure that prints right is accused: over random figures."""

import math

import numpy as np
import pytest
from labjobs.results import figures, print_check, style
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

WORDS = ("loss", "resnet18", "lr $10^{-3}$", "$\\alpha$", "Äh, Öl", "two\nlines", "a_b")
CELLS = [(x, y) for x in (0.2, 0.5, 0.8) for y in (0.25, 0.75)]
"""Places in axes where short texts are apart."""


def word(draw):
    return str(draw.choice(WORDS))


def lines(draw, ax):
    for index in range(draw.integers(1, 4)):
        ax.plot(draw.normal(size=20).cumsum(), label=f"{word(draw)} {index}")
    if draw.random() < 0.5:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))


def logarithmic(draw, ax):
    ax.loglog(10.0 ** np.arange(4), 10.0 ** draw.uniform(0, 4, 4))
    ax.xaxis.get_major_locator().set_params(numticks=3)
    ax.yaxis.get_major_locator().set_params(numticks=4)


def rotated(draw, ax):
    names = [word(draw) for _ in range(3)]
    turn = int(draw.choice([30, 45, 60, 90]))
    ax.bar(range(3), draw.uniform(1, 2, 3))
    ax.set_xticks(range(3), names, rotation=turn, ha="right", rotation_mode="anchor")


def inset(draw, ax):
    ax.plot([0, 1], [0, 1])
    within = ax.inset_axes([0.35, 0.35, 0.6, 0.6])
    within.plot(draw.normal(size=5))
    for axis in (within.xaxis, within.yaxis):
        axis.set_major_locator(MaxNLocator(2))


def notes(draw, ax):
    ax.set(xlim=(0, 1), ylim=(0, 1))
    for place in draw.permutation(CELLS)[: draw.integers(1, 4)]:
        ax.text(*place, f"{draw.random():.2f}"[1:], ha="center", va="center", fontsize="small")


def table(draw, ax):
    ax.axis("off")
    made = ax.table([[f"{x:.1f}" for x in row] for row in draw.random((2, 2))], loc="center")
    made.auto_set_font_size(False)
    made.set_fontsize(9)
    made.scale(1, 1.5)


def image(draw, ax):
    shown = ax.imshow(draw.random((4, 4)), aspect="auto")
    ax.figure.colorbar(shown, ax=ax)


KINDS = (lines, logarithmic, rotated, inset, notes, table, image)


def figure(draw):
    """A random figure for the venue in use."""
    rows, columns = int(draw.integers(1, 3)), int(draw.integers(1, 3))
    width = "full" if columns > 1 else "column"
    fig, grid = figures.figure(width, 1.9 * rows + 0.4, nrows=rows, ncols=columns, squeeze=False)
    for ax in grid.flat:
        kind = KINDS[draw.integers(len(KINDS))]
        kind(draw, ax)
        if kind is not table:
            ax.set(xlabel=word(draw), ylabel=word(draw), title=word(draw))
        if kind in (lines, inset, notes):
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_locator(MaxNLocator(3))
    if draw.random() < 0.3:
        fig.suptitle(word(draw))
    fig.draw_without_rendering()
    return fig


def texts(fig):
    """Texts that are drawn; ticks beyond the axes are not."""
    drawn = []
    original = Text.draw
    Text.draw = lambda self, renderer: (drawn.append(self), original(self, renderer))[1]
    try:
        fig.draw_without_rendering()
    finally:
        Text.draw = original
    return [text for text in dict.fromkeys(drawn) if text.get_visible() and text.get_text().strip()]


def shares_ink(fig):
    """Whether two texts share a pixel, by drawing each alone: knows no geometry."""
    ink = 0
    for text in texts(fig):
        renderer = RendererAgg(*fig.bbox.size, fig.dpi)
        text.draw(renderer)
        ink = ink + (np.asarray(renderer.buffer_rgba())[..., 3] > 128)
    return np.max(ink) > 1


def too_small(draw, fig, venue):
    """A fault returns the texts that have it, if it is one of text, and what is to be said."""
    text = draw.choice(texts(fig))
    text.set_fontsize(venue.least - draw.uniform(0.2, 3))
    if draw.random() < 0.5:
        text.set_path_effects([withStroke(linewidth=1, foreground="white")])
    return [text], "pt, under"


def script_of_script(draw, fig, _venue):
    return [draw.choice(fig.axes).set_title("$x_{a_b}$")], "scripts of scripts"


def cut_by_the_page(draw, fig, _venue):
    x, y = draw.choice([0, 1]), draw.uniform(0.2, 0.8)
    turn = draw.choice([0, 30, 90])
    text = fig.text(x, y, "MMM", ha="center", va="center", rotation=turn)
    return [text], "at the page's edge"


def axes_beyond_the_page(draw, fig, _venue):
    fig.add_axes([draw.uniform(0.6, 0.9), 0.2, 0.5, 0.5], xticks=[], yticks=[])
    return [], "reach beyond the page's edge"


def cut_by_its_axes(draw, fig, _venue):
    ax = draw.choice(fig.axes)
    place = {"transform": ax.transAxes, "ha": "center", "va": "center"}
    return [ax.text(draw.choice([0, 1]), 0.5, "MMM", clip_on=True, **place)], "edge of its axes"


def overlapping(draw, fig, _venue):
    box = draw.choice(texts(fig)).get_window_extent().transformed(fig.transFigure.inverted())
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    words = str(draw.choice(["MMM", "MMM\nMMM\nMMM"]))  # there is a line in the middle
    turn = draw.choice([0, 45, 90])
    return [fig.text(x, y, words, ha="center", va="center", rotation=turn)], "overlap"


def wrong_page(draw, fig, _venue):
    fig.set_figwidth(fig.get_figwidth() + draw.choice([-1, 1]) * draw.uniform(0.02, 0.3))
    return [], "in wide; should be"


def too_high(draw, fig, venue):
    fig.set_figheight(venue.height + draw.uniform(0.02, 1))
    return [], "in high; at most"


FAULTS = (
    too_small,
    script_of_script,
    cut_by_the_page,
    axes_beyond_the_page,
    cut_by_its_axes,
    overlapping,
    wrong_page,
    too_high,
)


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
            fig = figure(draw)
            if shares_ink(fig):  # a fault that nobody has planted
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
