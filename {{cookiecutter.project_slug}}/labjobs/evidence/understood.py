"""What the analysis knows about code outside of the project; all else may reach anything.

A library that is listed uses what it is given, by the names that the project's code writes down. It
imports no module of the project by itself, and reads neither its source nor its docstrings.
"""

import re


def words(text: str) -> set[str]:
    """Return the words of a text."""
    return set(text.split())


def parents(name: str) -> list[str]:
    """Return the packages of a module, outermost first, and the module."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


LIBRARIES = words(
    """
    __future__ abc argparse array asyncio atexit base64 binascii bisect builtins bz2 calendar
    cmath codecs collections colorsys concurrent configparser contextlib contextvars copy csv
    ctypes dataclasses datetime decimal difflib email enum errno fcntl filecmp fileinput fnmatch
    fractions functools getpass glob graphlib gzip hashlib heapq hmac html http importlib io
    ipaddress itertools json keyword locale logging lzma math mmap multiprocessing numbers
    operator optparse os pathlib pickle platform pprint pydoc_data queue quopri random re
    reprlib resource secrets select shelve shlex shutil signal socket sqlite3 stat statistics
    string stringprep struct subprocess sys tarfile tempfile textwrap threading time timeit
    tomllib traceback types typing typing_extensions unicodedata urllib uuid warnings wave
    weakref xml zipfile zlib zoneinfo PIL
    albumentations bitsandbytes cv2 datasets diffusers einops faiss flash_attn fvcore gymnasium
    h5py huggingface_hub imageio jax kornia lmdb matplotlib monai mlflow netCDF4 networkx
    nibabel nltk numba numpy open_clip opt_einsum pandas peft polars psutil pyarrow pydicom
    requests rasterio rdkit regex safetensors scipy seaborn segmentation_models_pytorch
    sentencepiece skimage sklearn soundfile librosa tabulate tensorboard tiktoken timm
    tokenizers torch torch_geometric torch_scatter torch_sparse torchaudio torchmetrics
    torchtext torchvision tqdm transformers triton trl wandb webdataset xarray yaml zarr
    zstandard labjobs
    """
)

REACH_ANYTHING = words(
    """
    eval exec compile vars dir help __import__ builtins importlib ctypes shelve timeit
    subprocess sys types.FunctionType types.CodeType types.ModuleType logging.config
    multiprocessing.set_executable os.system os.popen os.startfile
    asyncio.create_subprocess_exec asyncio.create_subprocess_shell asyncio.subprocess
    typing.get_type_hints typing_extensions.get_type_hints contextlib.redirect_stderr
    warnings.formatwarning warnings.showwarning functools.WRAPPER_ASSIGNMENTS
    pickle.load pickle.loads pickle.Unpickler traceback torch.jit
    torch.package torch.hub torch.serialization.load
    numpy.ctypeslib numpy.f2py pandas.read_pickle numba.cfunc yaml.unsafe_load yaml.Loader
    yaml.UnsafeLoader yaml.full_load yaml.FullLoader yaml.CLoader yaml.CFullLoader
    yaml.CUnsafeLoader mlflow.pyfunc mlflow.pytorch mlflow.sklearn monai.bundle
    multiprocessing.managers concurrent.futures.interpreter
    """
)
"""Of these libraries and of Python itself: imports, runs or reads code by names that are computed,
or makes objects of classes that only their data names."""

READ_UNSEEN = words(
    """
    av.open ctypes.cdll ctypes.CDLL ctypes.pydll ctypes.PyDLL cv2.CascadeClassifier cv2.dnn
    cv2.FileStorage cv2.imread cv2.imreadmulti cv2.VideoCapture datasets.Dataset.from_csv
    datasets.Dataset.from_file datasets.Dataset.from_json datasets.Dataset.from_parquet
    datasets.Dataset.from_text datasets.Dataset.load_from_disk datasets.DatasetDict.load_from_disk
    datasets.load_dataset datasets.load_from_disk decord duckdb faiss.read_index
    faiss.read_VectorTransform h5py.File librosa.load librosa.stream lmdb netCDF4.Dataset
    netCDF4.MFDataset pandas.HDFStore pandas.read_feather pandas.read_hdf pandas.read_orc
    pandas.read_parquet polars.read_avro polars.read_csv polars.read_csv_batched polars.read_excel
    polars.read_ipc polars.read_json polars.read_ndjson polars.read_parquet polars.scan_csv
    polars.scan_ipc polars.scan_ndjson polars.scan_parquet pyarrow.csv pyarrow.dataset
    pyarrow.feather.read_feather pyarrow.feather.read_table pyarrow.fs pyarrow.input_stream
    pyarrow.json pyarrow.memory_map pyarrow.orc pyarrow.OSFile pyarrow.parquet.ParquetDataset
    pyarrow.parquet.ParquetFile pyarrow.parquet.read_pandas pyarrow.parquet.read_table rasterio.open
    rdkit.Chem.ForwardSDMolSupplier rdkit.Chem.MolFromMol2File rdkit.Chem.MolFromMolFile
    rdkit.Chem.MolFromPDBFile rdkit.Chem.SDMolSupplier safetensors.numpy.load_file
    safetensors.safe_open safetensors.torch.load_file safetensors.torch.load_model scipy.io.mminfo
    scipy.io.mmread sentencepiece soundfile.blocks soundfile.read soundfile.SoundFile
    tokenizers.ByteLevelBPETokenizer.from_file tokenizers.models.BPE.from_file
    tokenizers.Tokenizer.from_file torch._C.PyTorchFileReader torch._inductor.aoti_load_package
    torch.export.load torch.export.pt2_archive torch.from_file torch.jit.load
    torch.package.PackageImporter torch.TypedStorage.from_file torch.UntypedStorage.from_file
    torchaudio.info torchaudio.load torchcodec torchvision.io.decode_image torchvision.io.read_file
    torchvision.io.read_image torchvision.io.read_video torchvision.io.VideoReader
    xarray.load_dataarray xarray.load_dataset xarray.open_dataarray xarray.open_dataset
    xarray.open_datatree xarray.open_mfdataset xarray.open_zarr
    """
)
"""What reads files that Python does not open (labjobs.job.data_evidence), or a copy of its own."""

HAVE_UNSEEN = {module for name in READ_UNSEEN for module in parents(name)[:-1]} - {"torch"}
"""Modules with such functions; of torch, `getattr(torch, name)` takes number formats."""

HARMLESS = words(
    """
    sys.argv sys.exit sys.stdout sys.stderr sys.stdin sys.version sys.version_info sys.platform
    sys.maxsize sys.float_info sys.byteorder sys.getsizeof importlib.metadata
    importlib.util.find_spec timeit.default_timer traceback.print_exc
    """
)
"""What belongs to one of those, and reaches nothing."""

SPECIAL = words(
    """
    init new call name qualname class len iter next getitem setitem delitem contains enter exit
    aenter aexit post_init version eq ne lt le gt ge hash repr str bool int float index add radd
    iadd sub rsub mul rmul truediv matmul pow neg abs getattr setattr delattr getattribute main
    init_subclass set_name get set getstate setstate torch_function all author format missing
    reversed length_hint
    """
)
"""Names between double underscores that lead nowhere but where they say."""

AS_VALUES = words("asyncio logging multiprocessing os pickle types typing yaml")
"""Parts of these can be had by computed names. In `getattr(torch, name)` it is a number format."""

FRAMES = re.compile(
    "(f|tb|gi|cr|ag|co)_(back|builtins|code|consts|filename|firstlineno|frame|globals|lasti|lineno"
    "|lines|linetable|locals|name|names|next|qualname|trace|varnames|freevars|positions)|lineno"
    "|findCaller|TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"  # has torch.load() make objects of any class
)


def is_special(name: str) -> bool:
    """Return whether a name of Python's own, or of a frame, leads to other code or to its text."""
    special = re.fullmatch("__([^\\W_]\\w*)__", name)
    return bool(special and special[1] not in SPECIAL) or bool(FRAMES.fullmatch(name))


def special_word(text: str) -> str:
    """Return a name in a text that leads to other code, or the beginning or end of one, of which
    code may make such a name; empty if there is none."""
    for word in re.findall("\\w*_\\w*|\\blineno\\b", text):
        is_part = "__" in (word[:2], word[-2:])
        if is_special(word) or (is_part and not re.fullmatch("__\\w+__|___+", word)):
            return str(word)
    return ""


def reaches_anything(path: str) -> bool:
    """Return whether what has a dotted path, outside of the project, may reach any code."""
    names = {*parents(path)}
    starts = path.startswith(("os.exec", "os.spawn", "os.posix_spawn")) or path in AS_VALUES
    return starts or (HARMLESS.isdisjoint(names) and not REACH_ANYTHING.isdisjoint(names))


def reads_unseen(path: str) -> bool:
    """Return whether a dotted path names what reads files that Python has not opened, or a module
    with such functions, used as a value. Classes may be values: they are named as types."""
    return not READ_UNSEEN.isdisjoint(parents(path)) or (path in HAVE_UNSEEN and path.islower())
