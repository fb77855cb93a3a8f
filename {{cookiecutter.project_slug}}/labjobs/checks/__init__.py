"""What `python run.py --check` does: it tests the guarantees on this project's own code.

The job runs a few times, for a few steps with few examples, in processes of its own and in a
temporary folder. May import all that a job is made of; only launch imports it.

    command     the command: runs the trials and prints an answer for each guarantee
    guarantees  what answers for which guarantee, and with what: answers, evidence
    resuming    the same bits twice, and after an interruption
    evaluating  evaluation that changes training, or is not repeatable
    trials      trials of a job: whole, interrupted, watched, each in its own process
    short       the job of a trial; facts: one that is recorded; watched: one that is looked at
    waits, evaluation, gradients, measurements, carried, draws
                what is looked at; operations: torch's, as they are done
    start       metrics in the first step
    places      lines of the student's code; digests: nested values, bit for bit
"""
