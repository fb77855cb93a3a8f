"""The names in a registry, read from its source: --help and wrong names need not wait for torch.

A registry is a dict with literal names, to which more can be added below it:

    MODELS = {"mlp": MLP, **OTHERS}      # OTHERS being another one in the same file
    MODELS["resnet"] = ResNet            # or MODELS |= {"resnet": ResNet}

    @register("vit")                     # of the project's own, in a module with one registry
    class ViT: ...
"""

import ast
from functools import cache
from pathlib import Path

from labjobs.errors import SettingsError
from labjobs.files import CODE

WRITTEN_OUT = "must be a dict with literal names, which are read without importing the module"


def names(registry: str) -> tuple[str, ...]:
    """Return the names in a registry such as "models.MODELS", in the order of the source.

    Raises SettingsError if the project has no such module or if the names are not literal.
    """
    module, _, name = registry.rpartition(".")
    path = CODE.joinpath(*module.split("."))
    file = next(filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py")), None)
    if not file:
        raise SettingsError(f"{registry}: there is no {module.replace('.', '/')}.py in the project")
    found = tuple(dict.fromkeys(_names(name, parsed(file), registry)))
    if not found:
        raise SettingsError(f"{registry}: there is no such dict, or it is empty")
    return found


@cache
def parsed(file: Path) -> ast.Module:
    """Return the source of a file as a tree. Raises SettingsError if it is not Python."""
    try:
        return ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise SettingsError(f"{file.name}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise SettingsError(f"{file.name}: {error}") from None


def _names(name: str, tree: ast.Module, registry: str) -> list[str]:
    """The names that the statements of a module put into one of its registries."""
    found: list[str] = []
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=value)
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                | ast.AugAssign(target=ast.Name(id=target), value=value)
            ) if target == name:
                found += _keys(name, value, tree, registry)
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=target), slice=ast.Constant(value=key))]
            ) if target == name:
                found.append(str(key))
            case ast.FunctionDef(decorator_list=calls) | ast.ClassDef(decorator_list=calls):
                found += filter(None, map(_registered, calls))
    return found


def _keys(name: str, value: ast.expr, tree: ast.Module, registry: str) -> list[str]:
    """The keys of a dict that is written out."""
    if not isinstance(value, ast.Dict):
        raise SettingsError(f"{registry}: {WRITTEN_OUT}")
    found: list[str] = []
    for pair in zip(value.keys, value.values, strict=True):
        match pair:
            case (ast.Constant(value=str(key)), _):
                found.append(key)
            case (None, ast.Name(id=other)):  # {**OTHER}; {**MODELS, …} has its own already
                found += _names(other, tree, registry) if other != name else []
            case _:
                raise SettingsError(f"{registry}: {WRITTEN_OUT}")
    return found


def _registered(call: ast.expr) -> str | None:
    match call:
        case ast.Call(func=ast.Name(id="register"), args=[ast.Constant(value=str(key)), *_]):
            return key
    return None
