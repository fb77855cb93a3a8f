"""What `python jobs.py repeat` does: it runs jobs again from their stored code and settings, in a
temporary folder, and compares the bits. May import job and tracking; `outputs` alone NumPy and
torch.

    recorded      an attempt as it was recorded, and why it cannot be repeated
    workplace     the temporary folder: code, inputs, environments, runs, a store
    environments  Python with an attempt's versions, installed by uv, or today's
    processes     runs a command; an interruption ends all that it has started
    again         runs an attempt again
    curves        where two journals first differ
    outputs       where two best.pt or two predictions.npz first differ
"""
