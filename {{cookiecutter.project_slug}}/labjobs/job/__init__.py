"""A job from the command to its exit status: identity, folder, journal, signals, terminal.

    identity       its id, its project and its script; runtime: the engine's flags
    folder         its folder, and what is in it; journal: what training measured
    attempts       the attempts at it, and the jobs that it is derived from
    code_evidence, data_evidence    which code and which data its results depend on
    provenance     commit, versions, copies of the code
    terminal       what it prints, and signals

Standard library and tqdm; may import cli, and tracking and sweeps where these report on a job.
"""
