"""A dataclass of settings as a command line. Standard library only; imports `settings` and what is
below it.

    flags       the fields of a dataclass as flags: texts, values, help; what is wrong with one
    parser      from the words of a command to settings and runtime
    registries  the names in a registry, read without importing its module
"""
