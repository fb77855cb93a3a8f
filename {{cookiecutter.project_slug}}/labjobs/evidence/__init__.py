"""Code as evidence: what a job's results depend on, found without importing anything.

    fingerprint   Project, Fingerprint: what the rest of the engine uses; all that a job reaches
    canonical     the canonical text of a definition in a job, and what the definition uses
    top_level     registries, whose entries count by key; what importing a module does
    settings_use  what code does with settings: conditions decided for one job, keys of registries
    symbols       what names refer to: scopes, modules, imports
    engine_code   the engine's modules and their results versions

Standard library only; imports no other package.
"""
