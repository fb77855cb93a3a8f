"""Legends, which stay within the figure."""

from labjobs.results import figures

LONG = "beta 0.001,0.2, evaluation every 5e, learning rate 0.00{}, weight decay 0.01, model convnet"


def test_long_names_are_wrapped():
    fig, ax = figures.figure("column", 3)
    for number in (1, 3):
        ax.plot([0, 1], [0, number], label=LONG.format(number))
    figures.legend(fig)
    fig.draw_without_rendering()
    (legend,) = fig.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert [name.replace("\n", " ") for name in names] == [LONG.format(1), LONG.format(3)]
    assert all("\n" in name for name in names)
    assert legend.get_window_extent().width <= fig.bbox.width


def test_short_names_stand_in_one_row():
    fig, ax = figures.figure("column", 2)
    for name in ("mlp", "convnet"):
        ax.plot([0, 1], label=name)
    figures.legend(fig)
    fig.draw_without_rendering()
    (legend,) = fig.legends
    first, second = (text.get_window_extent() for text in legend.get_texts())
    assert first.y0 == second.y0 and first.x1 < second.x0
