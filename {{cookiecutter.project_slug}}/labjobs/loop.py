"""The engine's names that run.py and other job scripts may use.

Job             the job: its settings, its position, its checkpoints, what it logs
Batches         batches on the device
Forward         a forward function as job.prepare() returns it
Means           means over batches
EMA             an exponential moving average of weights
EarlyStopping   which evaluation is best, and when to stop
Muon            an optimizer for hidden layers, and hidden_groups, which says what these are
Timing          what a schedule may know of a job: its steps, and how many are done
clip_gradients  torch's clip_grad_norm_ at half of its cost for the host
"""

from labjobs.data.batches import Batches
from labjobs.training.early_stopping import EarlyStopping
from labjobs.training.ema import EMA
from labjobs.training.forward import Forward
from labjobs.training.gradients import clip_gradients
from labjobs.training.job import Job
from labjobs.training.longer import Timing
from labjobs.training.measures import Means
from labjobs.training.muon import Muon, hidden_groups

__all__ = [
    "EMA",
    "Batches",
    "EarlyStopping",
    "Forward",
    "Job",
    "Means",
    "Muon",
    "Timing",
    "clip_gradients",
    "hidden_groups",
]
