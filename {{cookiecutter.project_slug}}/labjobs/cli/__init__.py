"""A dataclass of settings as a command line. Standard library only; imports `settings` and what is
below it.

    flags   the fields of a dataclass as flags: texts, values, names, help; what is wrong with one
    parser  from the words of a command to settings and runtime
"""
