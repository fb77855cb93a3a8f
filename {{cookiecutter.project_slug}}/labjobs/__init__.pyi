"""The names that a project's files may use: `from labjobs import …`, and no others.

Those of `settings.py` are in `labjobs.settings`, those of `plot.py` in `labjobs.results`.
`__init__.py` looks a name up here when it is first used, so that what needs no torch does not wait
for it.
"""

__version__: str

from labjobs import launch as launch
from labjobs import locks as locks
from labjobs.commands.command import jobs_command as jobs_command
from labjobs.data.batches import Batches as Batches
from labjobs.data.order import class_counts as class_counts
from labjobs.data.order import examples_at as examples_at
from labjobs.data.order import generator as generator
from labjobs.data.order import underlying as underlying
from labjobs.data.splits import check_groups as check_groups
from labjobs.data.splits import fold as fold
from labjobs.data.splits import remembered as remembered
from labjobs.data.splits import split as split
from labjobs.errors import JobError as JobError
from labjobs.errors import SettingsError as SettingsError
from labjobs.errors import did_you_mean as did_you_mean
from labjobs.errors import first_line as first_line
from labjobs.files import CODE as CODE
from labjobs.files import PROJECT as PROJECT
from labjobs.training.checkpoints import best_weights as best_weights
from labjobs.training.compilation import Forward as Forward
from labjobs.training.compilation import recompute_blocks as recompute_blocks
from labjobs.training.init_from import Timing as Timing
from labjobs.training.loop import Job as Job
from labjobs.training.meters import Means as Means
from labjobs.training.optim import EMA as EMA
from labjobs.training.optim import EarlyStopping as EarlyStopping
from labjobs.training.optim import Muon as Muon
from labjobs.training.optim import clip_gradients as clip_gradients
from labjobs.training.optim import hidden_groups as hidden_groups
from labjobs.training.progress import Stateful as Stateful
from labjobs.vision import ImageFolder as ImageFolder
from labjobs.vision import Normalized as Normalized
from labjobs.vision import channel_statistics as channel_statistics
from labjobs.vision import fetching as fetching
from labjobs.vision import freeze_backbone as freeze_backbone
from labjobs.vision import published as published
from labjobs.vision import random_shift as random_shift
from labjobs.vision import torchvision_classifier as torchvision_classifier
