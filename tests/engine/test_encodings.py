"""Every text that is read or written has its encoding named, whatever the locale is."""

import ast

import pytest
from repository import REPOSITORY

INNER = REPOSITORY / "{{cookiecutter.project_slug}}"
OF_A_TEXT = {"read_text": 1, "write_text": 2}
"""How many arguments such a call has, with the encoding."""


def unnamed(tree):
    """Yield the lines of calls that leave the encoding to the locale."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        given = {word.arg: word.value for word in call.keywords}
        if "encoding" in given:
            continue
        values = [
            each.value for each in (*call.args, *given.values()) if type(each) is ast.Constant
        ]
        modes = [each for each in values if isinstance(each, str) and set(each) <= set("rwaxbt+")]
        in_words = name in {"fdopen", "TemporaryFile", "NamedTemporaryFile"} and modes
        opened = name == "open" and (isinstance(call.func, ast.Name) or modes)
        of_a_text = (in_words or opened) and not any("b" in mode for mode in modes)
        if of_a_text or len(call.args) < OF_A_TEXT.get(name, 0) or _as_text(given):
            yield call.lineno


def _as_text(given):
    return isinstance(given.get("text"), ast.Constant) and given["text"].value is True


@pytest.mark.parametrize("of", ["labjobs", "examples", "hooks", "a project's own files"])
def test_every_encoding_is_named(of):
    roots = {"labjobs": INNER / "labjobs", "examples": REPOSITORY / "examples"}
    roots["hooks"] = REPOSITORY / "hooks"
    files = [*roots[of].rglob("*.py")] if of in roots else [*INNER.glob("*.py")]
    assert files
    found = [f"{file.name}:{n}" for file in files for n in unnamed(ast.parse(file.read_bytes()))]
    assert not found


@pytest.mark.parametrize(
    "call", ["open(a)", 'a.open("w")', "a.read_text()", "a.write_text(b)", "run(a, text=True)"]
)
def test_the_check_sees(call):
    assert [*unnamed(ast.parse(call))] == [1]
