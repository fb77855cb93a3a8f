"""Calls that change nothing, and names that may reach anything."""

import ast
from collections.abc import Callable

BUILT_IN = (
    *("abs", "all", "any", "bool", "bytes", "classmethod", "complex", "dict", "enumerate"),
    *("filter", "float", "frozenset", "getattr", "int", "isinstance", "len", "list", "map", "max"),
    *("min", "object", "print", "property", "range", "reversed", "round", "set", "sorted"),
    *("staticmethod", "str", "sum", "super", "tuple", "type", "zip"),
)

HARMLESS = {
    *BUILT_IN,
    *("functools.partial", "functools.cache", "functools.lru_cache", "functools.wraps"),
    *("re.compile", "pathlib.Path", "logging.getLogger", "dataclasses.field", "enum.auto"),
    *("typing.TypeVar", "typing.NewType", "typing.NamedTuple", "typing.ParamSpec", "typing.cast"),
    *(
        "torch.tensor",
        "torch.zeros",
        "torch.ones",
        "torch.arange",
        "torch.linspace",
        "torch.device",
    ),
    *("torch.Size", "numpy.array", "numpy.zeros", "numpy.ones", "numpy.arange", "numpy.linspace"),
}
HARMLESS_MODULES = (
    "math.",
    "operator.",
    "itertools.",
    "collections.",
    "fractions.",
    "labjobs.cli.",
)
"""Calling these changes nothing but the name that takes the result."""

METRIC = {"labjobs.cli.Metric", "labjobs.cli.metrics.Metric"}

TAKES_NAMES = {"sorted", "list", "tuple", "set", "frozenset", "len", "iter", "enumerate", "bool"}
"""These use only the names in a registry, not its values."""

REFLECTIVE = {
    *("eval", "exec", "importlib.reload", "importlib.util.spec_from_file_location"),
    *("runpy.run_path", "runpy.run_module", "sys.modules", "sys._getframe", "gc.get_objects"),
    *("inspect.currentframe", "inspect.stack", "pkgutil.iter_modules", "pkgutil.walk_packages"),
    *("importlib.import_module", "__import__", "sys.path", "site.addsitedir"),
}

IMPORTS = ("importlib.import_module", "__import__")

LOGS = ("debug", "info", "warning", "error", "exception", "critical", "log")

READS = {
    *("item", "mean", "std", "sum", "min", "max", "size", "numel", "dim", "tolist", "cpu"),
    *("detach", "format", "join", "strip", "upper", "lower", "keys", "values", "items", "ljust"),
    *("rjust", "norm", "memory_allocated", "max_memory_allocated", "float", "removeprefix"),
}
"""Methods that only read, of tensors, texts and dicts."""


def to_call(path: str) -> bool:
    """Return whether a call of something outside the project changes nothing."""
    return path in HARMLESS or path.startswith(HARMLESS_MODULES)


def is_pure(node: ast.AST) -> bool:
    """Return whether an expression visibly changes nothing."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(inner, ast.Call) and not _reads(inner.func):
            return False
    return True


def only_prints(statement: ast.stmt, path: Callable[[ast.expr], str]) -> bool:
    """Return whether a statement is `print(…)` or `log.info(…)` with arguments that change nothing.
    `path` returns what a name refers to, such as "print" or "logging.info".
    """
    match statement:
        case ast.Expr(value=ast.Call(func=function, args=args, keywords=keywords)):
            named = path(function)
            if named == "print":
                prints = not any(keyword.arg == "file" for keyword in keywords)
            else:
                prints = named.startswith("logging.") and named.split(".")[-1] in LOGS
            return prints and all(map(is_pure, [*args, *keywords]))
    return False


def _reads(function: ast.expr) -> bool:
    match function:
        case ast.Name(id=name):
            return name in BUILT_IN and name not in ("print", "map", "filter", "super", "object")
        case ast.Attribute(attr=name):
            return name in READS
    return False
