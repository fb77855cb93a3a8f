"""Code as evidence: what a job's results depend on, found without importing anything.

    fingerprint   Project, Fingerprint: what the rest of the engine uses; all that a job reaches
    canonical     the canonical text of a definition in a job, and what the definition uses
    top_level     registries, whose entries count by key; what importing a module does
    values        the job's own settings, conditions on them, keys of registries
    symbols       what names refer to: scopes, modules, imports
    understood    what the analysis knows about libraries and about Python's own names
    engine_code   the engine's modules and their results versions

Standard library only; imports no other package.
"""
