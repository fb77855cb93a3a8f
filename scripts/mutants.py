"""Random changes of a syntax tree."""

import ast
import copy
import random
from collections.abc import Iterator

OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def code_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that are code, and no docstrings."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    yield from (node for node in ast.walk(tree) if node not in texts)


def mutate(node: ast.AST, chance: random.Random) -> bool:
    """Change a node; returns whether there was something to change."""
    if isinstance(getattr(node, "body", None), list) and chance.random() < 0.7:
        return _mutate_block(node.body, chance)  # type: ignore[attr-defined]
    match node:
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() | float()):
            node.value = chance.choice([node.value + 1, -node.value - 1, node.value / 2])
        case ast.Constant(value=str()):
            node.value += "x"
        case ast.BinOp():
            node.op = chance.choice(OPERATORS)()
        case ast.Compare():
            node.ops[0] = chance.choice(COMPARISONS)()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Return() if node.value:
            node.value = ast.Tuple([node.value, node.value], ast.Load())
        case ast.Call() if node.keywords and chance.random() < 0.5:
            del node.keywords[chance.randrange(len(node.keywords))]
        case ast.Call(args=[_, _, *_]) | ast.Tuple(elts=[_, _, *_]):
            chance.shuffle(node.args if isinstance(node, ast.Call) else node.elts)
        case ast.Dict(values=[_, _, *_]):
            chance.shuffle(node.values)
        case ast.FunctionDef() | ast.ClassDef() if node.decorator_list:
            node.decorator_list.pop()
        case ast.arguments(defaults=[_, *_]):
            node.defaults[0] = ast.Constant(chance.randrange(100))
        case _:
            return False
    return True


def _mutate_block(body: list[ast.stmt], chance: random.Random) -> bool:
    """Remove, double, exchange or move statements."""
    place = chance.randrange(len(body))
    kind = chance.choice(["remove", "double", "exchange"])
    if kind == "remove":
        body[place] = ast.Pass()
    elif kind == "double":
        body.insert(place, copy.deepcopy(body[place]))
    elif place:
        body[place - 1], body[place] = body[place], body[place - 1]
    return True
