"""Code as evidence: what a job's results depend on, found without importing anything.

    fingerprint       Project, Fingerprint: what the rest of the engine uses
    closure           everything that a job reaches, from its entry, as canonical text
    names             what a name stands for, and what importing a module does
    settings_use      what code does with settings; conditions on them, decided for one job
    registry_entries  dicts whose entries count by key
    engine_code       the engine's modules and their results versions
    modules           the modules of a project, taken apart; files that count as evidence
    syntax            the canonical text of a syntax tree, its scopes, calls that change nothing

Standard library only; imports no other package.
"""
