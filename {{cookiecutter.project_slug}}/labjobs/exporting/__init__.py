"""What `python jobs.py export-model` does: it writes a job's network so that it runs without the
project. May import training, and what that may.

    command   from the arguments to a folder, which is written whole or not at all
    inputs    example inputs, of any number of examples
    program   the network as torch.export and ONNX write it
    check     are its outputs those of the network?
    card      the model card, README.md
"""
