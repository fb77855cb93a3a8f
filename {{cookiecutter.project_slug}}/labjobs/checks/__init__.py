"""What `python run.py --check` does: it tests the guarantees on this project's own code.

The job runs a few times, for a few steps with few examples, in processes of its own and in a
temporary folder. May import all that a job is made of; only launch imports it.

    trials    trials of a job: whole, interrupted, watched, each in its own process; and what they
              say about each guarantee
    facts     the short job of a trial, and one that is recorded bit for bit
    watching  one that is looked at: waits, evaluation, gradients, measurements, what is carried
"""
