"""Canonical text in which each name is replaced by what it refers to."""

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from labjobs.evidence import harmless
from labjobs.evidence.canonical import Canonical
from labjobs.evidence.effects import acts_on_subclasses
from labjobs.evidence.modules import Module
from labjobs.evidence.project_code import ProjectCode
from labjobs.evidence.project_files import parents
from labjobs.evidence.resolution import Target, chain_of, imported_as
from labjobs.evidence.scopes import Comprehension, Function, Scope, annotations, outside
from labjobs.evidence.uses import TOKEN, Use

REACH_ANYTHING = ("__subclasses__", "__globals__", "f_globals")


class NameWriter(Canonical):
    """Writes code of one module and notes what it uses. Local variables are numbered."""

    def __init__(self, code: ProjectCode, module: Module) -> None:
        super().__init__()
        self.code, self.module = code, module
        self.scope: Scope | None = None
        self.uses: dict[Use, None] = {}
        self._scopes: list[Scope] = []  # kept, so that each id() stays its own
        self._numbers: dict[tuple[int, str], int] = {}

    def use(self, use: Use) -> None:
        """Note what is used."""
        self.uses.setdefault(use)

    def target(self, node: ast.AST) -> Target | None:
        """Return what `a.b.c` refers to; None for local names and for other expressions."""
        chain = chain_of(node)
        return self.code.resolver.within(self.module, self.scope, chain) if chain else None

    # Names

    def _Name(self, node: ast.Name) -> None:
        target = self.target(node)
        if not self.scope and isinstance(node.ctx, ast.Store):  # the definition of the name
            self.out.append(TOKEN.format(self.module.name, node.id))
        elif target:
            self._write(target, [node.id])
        elif self.scope and (owner := self.scope.owner(node.id)):
            self._local(owner, node.id)

    def _Attribute(self, node: ast.Attribute) -> None:
        target = self.target(node)
        if target:
            self._write(target, chain_of(node))
        else:
            self.plain(node)
        if node.attr in REACH_ANYTHING:
            self.use(Use("everything", why=f"{node.attr} in {self.module.name}.py"))

    def _local(self, owner: Scope, name: str) -> None:
        if owner.is_variable(name) and not self.code.reads_locals:
            number = self._numbers.setdefault((id(owner), name), len(self._numbers))
            self.out.append(f"v{number}")
            return
        self.out.append(f"local:{name}")
        if isinstance(owner.node, ast.ClassDef) and name in self.module.definitions:
            self.use(Use("definition", self.module.name, name))  # before the class binds it

    def _write(self, target: Target, chain: Sequence[str]) -> None:
        """Write what a chain of names refers to, and note that it is used."""
        shown, here = ".".join(chain), f"{self.module.name}.py"
        match target.kind:
            case "definition":
                self.use(Use("definition", target.module, target.name))
                self.out.append(TOKEN.format(target.module, target.name))
            case "module":
                why = f"{here} uses {shown} as a value"
                self.use(Use("whole", target.module, why=why))
                self.out.append(f"module:{target.module}")
            case "outside":
                self._outside(target.path)
            case _:
                self.out.append(f"?{target.name}")
                if target.module != self.module.name:
                    why = f"{here} uses {shown}, which is not written there"
                    self.use(Use("whole", target.module, why=why))
        self.out.extend(f".{name}" for name in chain[target.used :])

    def _outside(self, path: str) -> None:
        self.out.append(f"<{path}>")
        why = f"{self.module.name}.py uses {path}"
        if path.startswith("labjobs."):
            self.use(Use("engine", path))
        elif path == "globals" or (path == "vars" and not self.scope):
            self.use(Use("whole", self.module.name, why=why))
        elif harmless.REFLECTIVE.intersection(parents(path)):
            self.use(Use("everything", why=why))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Write an import, unless its names refer to the same thing everywhere."""
        for name in self.module.modules_of(node):
            self.use(Use("import", name))
        for local, alias in self.module.imported(node).items():
            owner = self.scope.owner(local) if self.scope else None
            if owner:
                has_one_meaning = imported_as(self.module, owner, local) is not None
            else:
                has_one_meaning = local in self.module.aliases
            if not has_one_meaning:
                self.out.append(f"{local}=")
                self._write(self.code.resolver.imported(*alias, [local]), [local])

    _Import = _ImportFrom = _import

    # Functions, classes and comprehensions

    @contextmanager
    def _inside(self, node: ast.AST) -> Iterator[Scope]:
        outer, scope = self.scope, Scope(node, self.scope)
        self.scope = scope
        self._scopes.append(scope)
        yield scope
        self.scope = outer

    def _function(self, node: Function) -> None:
        self.out.append(f"{type(node).__name__}:{getattr(node, 'name', '')}(")
        self.value(outside(node))
        if self.code.reads_annotations(self.module, node):
            self.value(list(annotations(node)))
        self._arguments(node.args)
        with self._inside(node) as scope:
            self.out.append("generator;" if scope.is_generator() else "")
            self.field("body", node.body)
        self.out.append(")")

    _FunctionDef = _AsyncFunctionDef = _Lambda = _function

    def _arguments(self, node: ast.arguments) -> None:
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            found = getattr(node, kind)
            names = [a.arg for a in (found if isinstance(found, list) else [found]) if a]
            self.out.append(f"{kind}:{','.join(names)};")
        required = [str(default is None)[0] for default in node.kw_defaults]
        self.out.append(f"{len(node.defaults)}{''.join(required)};")

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self.out.append(f"class:{node.name}(")
        self.value(outside(node))
        with self._inside(node):
            self.block(self.code.body_of(self.module, node))
        self.out.append(")")
        if acts_on_subclasses(node):
            self.use(Use("subclasses", self.module.name, node.name))

    def _comprehension_of(self, node: Comprehension) -> None:
        self.out.append(f"{type(node).__name__}(")
        self.write(node.generators[0].iter)  # which does not see the names of the comprehension
        with self._inside(node):
            for name in ("elt", "key", "value", "generators"):
                if hasattr(node, name):
                    self.field(name, getattr(node, name))
        self.out.append(")")

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _comprehension_of
