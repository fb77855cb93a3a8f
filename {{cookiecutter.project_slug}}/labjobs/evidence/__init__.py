"""Code as evidence: what a job's results depend on, found without importing anything.

    fingerprint       Project, Fingerprint: what the rest of the engine uses
    closure           everything that a job reaches, from its entry
    writer            the canonical text of a definition in a job, and what it uses
    canonical         the canonical text of a syntax tree
    scopes            which names are local
    modules           a module, taken apart
    project_files     the modules of a project
    project_code      what is known of all of them together
    resolution        what a name stands for
    registries, keys  dicts whose entries count by key; whether a key can be known
    settings_use      what code does with settings
    conditions        conditions on settings, decided for one job
    effects           what importing a module does
    harmless          calls that change nothing
    engine_code       the engine's modules and their results versions
    running           which code really runs
    evidence_files    files that comments name, and sources of programs that constants name
    versions          a maintainer's command: records the engine's modules

Standard library only; imports no other package.
"""

from labjobs.evidence.fingerprint import Fingerprint, Project

__all__ = ["Fingerprint", "Project"]
