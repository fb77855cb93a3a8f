"""What stands at the top level of modules besides definitions: registries, and side effects.

Registries are dicts whose entries count by their keys:

    MODELS = {"mlp": MLP, "convnet": lambda settings, spec: ConvNet(spec.shape)}
    MODELS["vit"] = ViT                       # anywhere at a module's top level

    def register(name):                       # in this form: it does nothing else
        def add(network):
            MODELS[name] = network
            return network
        return add

    @register("vit")
    class ViT: ...
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from labjobs.evidence.symbols import (
    DEPTH,
    Module,
    Symbols,
    Target,
    at_import,
    chain_of,
    children,
    does_nothing,
    everywhere,
    outside,
    tail,
)
from labjobs.evidence.understood import parents, reaches_anything, words
from labjobs.evidence.values import Values

Name = tuple[str, str]
"""A module and a name in it."""


class Entry(NamedTuple):
    """The value of a key, and the module in which it is written."""

    key: str
    module: Module
    node: ast.AST


class Registries:
    """The registries of all modules of a job."""

    def __init__(self, modules: list[Module], symbols: Symbols) -> None:
        self._symbols = symbols
        self.entries: dict[Name, list[Entry]] = {}
        """The entries of each registry, in the order in which they are added."""
        self.adding: dict[ast.AST, Name] = {}
        """Statements and decorators that add entries, and to which registry."""
        self._named: set[ast.AST] = set()  # where these statements name it
        self._imported: set[str] = set()
        for module in modules:
            for name in module.definitions:
                if value := _written_out(module, name):
                    pairs = zip(value.keys, value.values, strict=True)
                    found = [Entry(_text(key), module, part) for key, part in pairs]
                    self.entries[module.name, name] = found
        for module in modules:
            self._import(module.name)
        # Of one that is read on import, it matters what has been added by then.
        read = {name for module in modules for name in self._read(module)}
        for registry in read.intersection(self.adding.values()):
            del self.entries[registry]
        self.adding = {node: to for node, to in self.adding.items() if to in self.entries}

    def _import(self, name: str) -> None:
        """Note the entries that importing a module adds, after those of what it imports before."""
        for each in parents(name):
            module = self._symbols.get(each)
            if not module or each in self._imported:
                continue
            self._imported.add(each)
            for statement in module.statements:
                for node in everywhere(statement, at_import):
                    for imported in module.modules_of(node):
                        self._import(imported)
                self._add(module, statement)

    def _read(self, module: Module) -> Iterator[Name]:
        """Yield what importing a module reads, besides naming the registries that it adds to."""
        for statement in module.statements:
            for node in everywhere(statement, at_import):
                if isinstance(node, ast.Name | ast.Attribute) and node not in self._named:
                    found = self._symbols.definition(module, node)
                    if found and isinstance(node.ctx, ast.Load):
                        yield found[0].name, found[1]

    def _add(self, module: Module, statement: ast.stmt) -> None:
        """Note the entries that a statement, or its decorators, add."""
        for decorator in getattr(statement, "decorator_list", []):
            match decorator:
                case ast.Call(function, [key], []) if _text(key):
                    if registry := self._filled_by(module, function):
                        self.entries[registry].append(Entry(_text(key), module, statement))
                        self.adding[decorator] = registry
        match statement:
            case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)], value=value):
                found = self._symbols.definition(module, owner)
                name = (found[0].name, found[1]) if found else None
                if name in self.entries and _text(key):
                    self.entries[name].append(Entry(_text(key), module, value))
                    self.adding[statement] = name
                    self._named.add(owner)

    def _filled_by(self, module: Module, function: ast.expr) -> Name | None:
        """Return the registry to which a function such as `register` adds, and does no more."""
        found = self._symbols.definition(module, function)
        match found[0].definitions[found[1]] if found else []:
            case [ast.FunctionDef(_, ast.arguments(args=[ast.arg(key)]), body, [])]:
                body = [statement for statement in body if not does_nothing(statement)]
            case _:
                return None
        match body:
            case [ast.FunctionDef(add, ast.arguments(args=[ast.arg(new)]), body, []),
                  ast.Return(ast.Name(returned))] if returned == add:  # fmt: skip
                body = [statement for statement in body if not does_nothing(statement)]
            case _:
                return None
        match body:
            case [ast.Assign([ast.Subscript(owner, ast.Name(under))], ast.Name(value)),
                  ast.Return(ast.Name(returned))]:  # fmt: skip
                is_plain = (under, value, returned) == (key, new, new) and key != new
                registry = self._symbols.definition(found[0], owner) if found and is_plain else None
                if registry and tail(owner) not in (key, new, add):
                    name = registry[0].name, registry[1]
                    return name if name in self.entries else None
        return None


def _text(key: ast.AST | None) -> str:
    """Return the key that is written out as a text."""
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _written_out(module: Module, name: str) -> ast.Dict | None:
    """Return the dict that a name stands for, if it is empty or has texts as keys and code as
    values."""
    match module.definitions[name]:
        case [ast.Assign([ast.Name()], ast.Dict() as value) | ast.AnnAssign(ast.Name(), _,
              ast.Dict() as value)]:  # fmt: skip
            code = (ast.Lambda, ast.Name, ast.Attribute)
            has_code = any(isinstance(n, code) for v in value.values for n in ast.walk(v))
            return value if all(map(_text, value.keys)) and (has_code or not value.keys) else None
    return None


# What importing a module does besides defining names. It counts for all jobs. A statement defines a
# name and does nothing else if it consists of what is listed here; everything else may do more.

MAKE_FIXED = words(
    """
    bool bytes complex float frozenset int len max min range round str sum tuple abs re.compile
    pathlib.Path torch.device torch.Size math.sqrt math.log math.log2 math.log10 math.exp
    math.prod math.ceil math.floor math.pow math.cos math.sin
    """
)
"""Calling these changes nothing if they are given data, and what they return cannot change."""

TAKE_DATA = MAKE_FIXED | words(
    """
    dict enumerate list reversed set sorted zip torch.tensor torch.zeros torch.ones torch.arange
    torch.linspace numpy.array numpy.zeros numpy.ones numpy.arange numpy.linspace
    """
)
"""Calling these changes nothing, if what they are given is data."""

KEEP = words(
    """
    functools.partial dataclasses.field enum.auto typing.TypeVar typing.NewType typing.ParamSpec
    logging.getLogger labjobs.settings.Metric labjobs.settings.Span labjobs.settings.setting
    labjobs.settings.added operator.attrgetter operator.itemgetter operator.methodcaller
    threading.Lock
    """
)
"""Calling these changes nothing and calls nothing."""

FIELD = "dataclasses.field"  # tells its default of the class, too

DATA = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.UnaryOp, ast.BinOp, ast.Subscript, ast.Slice),
    *(ast.JoinedStr, ast.FormattedValue, ast.keyword),
)

DECORATE = words(
    """
    property staticmethod classmethod functools.cache functools.lru_cache functools.wraps
    functools.cached_property functools.total_ordering contextlib.contextmanager
    dataclasses.dataclass abc.abstractmethod enum.unique typing.final typing.overload
    typing.override typing.runtime_checkable torch.no_grad torch.inference_mode
    torch.enable_grad torch.compile triton.jit torch.compiler.disable labjobs.data.splits.remembered
    """
)
"""These decorators wrap or mark what they decorate, and do nothing else on import."""

BASES = ("object", "Exception", "ValueError", "RuntimeError", "dict", "list", "tuple", "str", "int")
"""Built-in classes. Most of libraries, such as nn.Module, do nothing to subclasses either."""

REGISTERING = words(
    """
    yaml.YAMLObject albumentations.BasicTransform albumentations.DualTransform
    albumentations.ImageOnlyTransform
    """
)
"""Those that note their subclasses by a name, with which files then make objects of them."""


class Effects:
    """The statements of a module that do more than define names."""

    def __init__(
        self, symbols: Symbols, registries: Registries, values: Values, module: Module
    ) -> None:
        self._module, self._symbols, self._registries = module, symbols, registries
        self._may_change = values.may_change
        again = {
            statement
            for name, statements in module.definitions.items()
            if len(statements) > 1 and (module.name, name) not in registries.entries
            for statement in statements
        }
        again |= {each for each in module.statements if values.rebound(module, each)}
        self.statements = [s for s in module.statements if s in again or self._acts(s)]
        """In their order, with those that bind a name again, and imports of one that may change."""

    def _acts(self, statement: ast.stmt) -> bool:
        try:
            return not self._is_inert(statement)
        except RecursionError:
            return True

    def _is_inert(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(ast.Constant()):
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = statement.decorator_list
                parts = [part for part in at_import(statement) if part not in decorators]
                are_inert = all(map(self._is_inert_decorator, decorators))
                return are_inert and all(map(self._is_value, parts))
            case ast.ClassDef(keywords=[]):
                bases = [self._path(self._module, base) for base in statement.bases]
                makes_members = any(base.startswith("enum.") for base in bases)
                named = [getattr(inner, "name", "") for inner in statement.body]
                return (
                    all(map(self._is_inert_decorator, statement.decorator_list))
                    and all(self._is_base(self._module, base, 0) for base in statement.bases)
                    and all(map(self._is_inert, statement.body))
                    and not any(map(self._binds_object, statement.body))
                    and not (makes_members and any(name.startswith("_") for name in named))
                )
            case ast.Assign(targets=[ast.Name()], value=value):
                return self._is_value(value)
            case ast.AnnAssign(target=ast.Name(), annotation=kind, value=value):
                return self._is_value(kind) and (value is None or self._is_value(value))
            case ast.Assign(value=value) if statement in self._registries.adding:
                return self._is_value(value)
        return type(statement).__name__ == "TypeAlias"

    def _binds_object(self, statement: ast.stmt) -> bool:
        """Whether a statement in a class makes objects of the project its attributes, which may
        have a method for that, `__set_name__`."""
        module = self._module
        aliases = module.imported(statement).items()
        found = [self._symbols.of_import(*alias, [local]) for local, alias in aliases]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and (value := statement.value):
            values: list[ast.expr] = [value]
            if isinstance(value, ast.Call) and self._path(module, value.func) == FIELD:
                values = [keyword.value for keyword in value.keywords]
            chains = filter(None, map(chain_of, values))
            found += [self._symbols.resolve(module, chain) for chain in chains]
        return any(each.kind == "definition" and self._is_object(each) for each in found)

    def _is_object(self, target: Target) -> bool:
        """Whether a definition may be something else than a function, a class or a constant."""
        home = self._symbols.get(target.module)
        match home.definitions[target.name] if home else []:
            case [ast.FunctionDef(decorator_list=[])]:
                return False
            case [ast.ClassDef(name=name)] if home:
                return not self._is_base(home, ast.Name(name, ast.Load()), 0)
            case [ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value)] if home:
                return not self._is_data(home, value)
        return True

    def _is_inert_decorator(self, node: ast.expr) -> bool:
        if node in self._registries.adding:
            return True
        chain = chain_of(node)
        if chain[1:] in (["setter"], ["getter"], ["deleter"]):  # of a property of the same class
            return self._symbols.resolve(self._module, chain[:1]).kind == "nothing"
        function, given = node, []
        if isinstance(node, ast.Call):
            function, given = node.func, [*node.args, *(k.value for k in node.keywords)]
        is_known = self._path(self._module, function) in DECORATE
        return is_known and all(map(self._is_value, given))

    def _is_base(self, module: Module, node: ast.expr, depth: int) -> bool:
        """Whether inheriting from a class does nothing."""
        node = node.value if isinstance(node, ast.Subscript) else node  # Generic[T]
        path = self._path(module, node)
        if path or depth > DEPTH:
            is_enum = path.startswith("enum.") and depth > 0
            acts = is_enum or path in REGISTERING
            return path in BASES or ("." in path and self._symbols.is_library(path) and not acts)
        found = self._symbols.definition(module, node)
        match found[0].definitions[found[1]] if found else []:
            case [ast.ClassDef(keywords=[], body=body, bases=bases)] if found:
                hooks = ("__init_subclass__", "__class_getitem__", "__set_name__")
                acts = any(getattr(inner, "name", "") in hooks for inner in body)
                return not acts and all(self._is_base(found[0], each, depth + 1) for each in bases)
        return False

    def _path(self, module: Module, node: ast.AST) -> str:
        """Return the path of what a node names outside of the project, if it is always that."""
        path = self._symbols.path_of(module, node)
        return "" if self._may_change("", path) else path

    def _is_name(self, node: ast.expr) -> bool:
        """Whether `a.b.c` is a name of a library or of a definition, and always of the same one."""
        chain = chain_of(node)
        target = self._symbols.resolve(self._module, chain) if chain else None
        if not target or self._may_change(target.module, target.name):
            return False
        if target.kind == "definition":
            home = self._symbols.get(target.module)
            is_one = home is not None and len(home.definitions[target.name]) == 1
            return is_one and target.used == len(chain)
        is_known = target.kind == "module" or bool(target.path)
        return is_known and not reaches_anything(target.path)

    def _is_value(self, node: ast.AST) -> bool:
        """Whether evaluating an expression, which may be a type, does nothing."""
        module = self._module
        match node:
            case ast.Name() | ast.Attribute() if self._is_name(node):
                return True
            case ast.Lambda():
                return all(map(self._is_value, outside(node)))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(map(self._is_value, parts))
            case ast.Dict(keys=keys, values=parts):
                are_data = all(key and self._is_data(self._module, key) for key in keys)
                return are_data and all(map(self._is_value, parts))
            case ast.Call(func=kind, args=args, keywords=named) if self._path(module, kind) in KEEP:
                return all(map(self._is_value, [*args, *(each.value for each in named)]))
            case ast.Subscript() | ast.BinOp(op=ast.BitOr()) if self._is_type(module, node, 0):
                return True
        return self._is_data(module, node)

    def _is_type(self, module: Module, node: ast.AST, depth: int) -> bool:
        """Whether an expression is a type such as `Literal["a"] | Net | None`, and putting it
        together calls no operator of the project's own."""
        match node:
            case ast.Constant():
                return True
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(self._is_type(module, each, depth) for each in parts)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._is_type(module, left, depth) and self._is_type(module, right, depth)
            case ast.Subscript(value=kind, slice=inside):
                is_plain = bool(self._path(module, kind)) and self._is_type(module, kind, depth)
                return is_plain and self._is_type(module, inside, depth)
            case ast.Name() | ast.Attribute() if path := self._path(module, node):
                return not reaches_anything(path)
        found = self._symbols.definition(module, node) if depth < DEPTH else None
        if not found or self._may_change(found[0].name, found[1]):
            return False
        match found[0].definitions[found[1]]:
            case [ast.ClassDef(keywords=[], bases=bases)]:  # without a metaclass of the project
                return all(self._is_type(found[0], base, depth + 1) for base in bases)
            case [ast.Assign([ast.Name()], ast.Call(func=kind))]:
                return self._path(found[0], kind) in KEEP  # such as TypeVar
            case [ast.Assign([ast.Name()], value)]:
                return self._is_type(found[0], value, depth + 1)
        return False

    def _is_data(self, module: Module, node: ast.AST, depth: int = 0) -> bool:
        """Whether an expression consists of numbers, texts and names for these."""
        parts = children(node)
        match node:
            case ast.Call(func=function):
                is_datum = self._path(module, function) in TAKE_DATA
                parts = [part for part in parts if part is not function]
            case ast.Name() | ast.Attribute() if path := self._path(module, node):
                return path.startswith(("math.", "torch.", "numpy.", "string."))
            case ast.Name() | ast.Attribute():
                return self._is_constant(module, node, depth)
            case ast.Dict(keys=keys):
                is_datum = all(keys)
            case _:
                is_datum = isinstance(node, DATA)
        return is_datum and all(self._is_data(module, part, depth) for part in parts)

    def _is_constant(self, module: Module, node: ast.expr, depth: int) -> bool:
        """Whether a name of the project stands for data that nothing changes."""
        found = self._symbols.definition(module, node)
        match found[0].definitions[found[1]] if found and depth < DEPTH else []:
            case [
                ast.Assign([ast.Name()], value) | ast.AnnAssign(ast.Name(), _, ast.expr() as value)
            ] if found and not self._may_change(found[0].name, found[1]):
                parts = [*everywhere(value)]
                calls = (part.func for part in parts if isinstance(part, ast.Call))
                is_fixed = all(self._path(found[0], function) in MAKE_FIXED for function in calls)
                is_fixed &= not any(isinstance(p, ast.List | ast.Dict | ast.Set) for p in parts)
                return is_fixed and self._is_data(found[0], value, depth + 1)
        return False
