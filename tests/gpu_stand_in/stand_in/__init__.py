"""CUDA GPUs that are not there, for tests of what a GPU's jobs do on a machine without one.

With tests/gpu_stand_in on PYTHONPATH and STAND_IN_GPUS=2, torch says that it has two GPUs. What is
on one lies in the host's memory and is computed there. The C functions that ask the driver are
replaced (driver.py), and a tensor on a GPU is of a subclass that says it is there (tensors.py); all
that is above is torch's own code, with its checks of arguments. So what torch refuses is refused: a
device without an index where it wants one, CUDA in a forked process, a GPU's tensor as a NumPy
array. What its C++ code for CUDA refuses is refused by hand (rules.py): tensors of two devices in
one operation, the CPU's generator for a GPU's tensor, and with `--deterministic` an operation that
is not deterministic on a GPU.

Operations are finished before the host goes on, except within `late.running_late`: there the host
runs ahead, and the work is done later, in an order drawn from a seed.

It cannot show speed, memory, bits (they are the CPU's), code that torch compiles for a GPU, or two
GPUs at once in one process. A test that passes with it has not run on a GPU.
"""

import os
import sys


def install() -> None:
    if os.environ.get("STAND_IN_GPUS"):
        from stand_in.hook import AfterImport

        sys.meta_path.insert(0, AfterImport())
