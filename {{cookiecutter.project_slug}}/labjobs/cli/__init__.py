"""A dataclass of settings as a command line. Standard library only; imports `settings` and what is
below it.

    flags   the fields of a dataclass as flags: texts, values, names, help; what is wrong with one
    ranges  what a flag is drawn from in a search
    parser  from the words of a command to settings and runtime
"""
