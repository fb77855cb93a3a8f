"""What `python jobs.py` does: it looks after the jobs of a project. May import whatever a job is
made of. What answers for jobs imports no torch, so that it answers at once.

    command     the command line
    inventory   the project's jobs, on this disk and in the store; `list` and `show`
    staleness   `stale`: which jobs the present code no longer fits; `why`: by which way; `accept`:
                changes that change no results
    replay      attempts that run again: `repeat`: from their stored code; `audit`: from the present
                code
    publish     `publish`: jobs with all that their results rest on, in a folder to give away;
                `adopt`: such a folder's jobs, taken into this clone of the project
    diff        `diff`: how two jobs, or groups of jobs, differ; `bisect`: which changed
                definitions are the reason
    gate        `try`: is changed code, or are other settings, better than finished jobs?
    disk        `disk`, `clean`, `rm`: the space that jobs take
    gpu         `gpu`: what this machine's GPUs can do, and what is wrong with them
    cluster     `cluster check`: what works on a cluster, from a job of a minute
    propose     what run.sh's `propose`, `breed` and `confirm` ask: jobs that follow from results
    find        `find`: a learning rate, a batch size, a number of loader processes, from short jobs
    export      `export-model`: a folder with the network, as torch.export writes it
"""
