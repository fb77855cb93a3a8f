"""The names of the files in which a job's state lies, each in one place."""

# In an attempt's folder, runs/<job>/<attempt>/
SETTINGS = "settings.json"
JOURNAL = "metrics.jsonl"
OUTCOME = "outcome.json"
DATA = "data.jsonl"
DATA_FILES = "data*.jsonl"  # those of further processes too
ADOPTED = "adopted.json"  # by `jobs.py adopt`
AUDIT = "audit.json"  # by `jobs.py audit`
BEST = "best.pt"
LAST = "last.pt"
PREVIOUS = "previous.pt"
CHECKPOINTS = (LAST, PREVIOUS)
PREDICTIONS = "predictions.npz"
INDEX = "index"  # in it, where each example is in its dataset
GROUP = "group"  # and to which group it belongs, if examples are not independent
LENGTHS = ".lengths"  # how the arrays end that hold the lengths of examples
LOGGED = "logged"
LOG = "log.txt"
OUTPUT = "output.txt"
TASK = "task.json"  # of a cluster; kept if it was killed, or ran out of memory
LOCK = "lock"
COURIER_LOCK = "courier.lock"  # while a courier is at work
SENT = "sent.json"
WANDB_SENT = "wandb.json"
PROFILE = "profile.txt"
PROFILE_JSON = "profile.json"
BEFORE = "before"  # what there was until an attempt started over, until the new one has finished

# In a job's folder, beside its attempts
DRAWN = "drawn.json"  # by `search` of run.sh

# In the folder of runs, shared by its jobs
DATA_LISTS = ".data"
SPLITS = ".splits"
CODES = ".code"  # whole copies, and the definitions that jobs depend on
INSTALLED = ".installed"
SHARED = (DATA_LISTS, SPLITS, CODES, INSTALLED)

# In the project's folder
PROJECT_ID = ".project-id"
ACCEPTED = "accepted.jsonl"
TRIES = "tries.jsonl"
FROZEN = ".version.json"  # in a copy of the code: what was copied
SWEEPS = ".sweeps"
SEARCHES = "searches"  # what `propose` and `breed` of run.sh have proposed
CACHE = ".cache"
ENVIRONMENT = "pyvenv.cfg"  # in a virtual environment
EXPORTED = "exported"
COPIES = TENSORBOARD, WANDB = "tensorboard", "wandb"

# In a sweep's folder, .sweeps/<name>/
LEFT = "left.json"
KEPT = "kept"  # it is not removed: jobs have written something there
CHECKED = "checked.json"
SUBMITTED = "submitted.json"
ARRAYS = "arrays"  # of a batch system
TOKEN = "token"  # by which a host sees that it shares the disk
