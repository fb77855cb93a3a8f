"""Runs the stand-in's code as soon as a module of torch has been imported."""

import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType


class AfterImport(MetaPathFinder):
    """Finds torch's modules as Python does, and has the stand-in act once they are loaded.

    torch._C is changed before any of torch's Python code runs, which copies some of its functions.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return Python's own spec, its loader followed by the stand-in."""
        if name not in ("torch._C", "torch"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader = _Then(spec.loader)
        return spec


class _Then(Loader):
    """A module's own loader, then the stand-in."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__name__ == "torch._C":
            from stand_in import driver

            driver.replace(sys.modules["torch._C"])
        else:
            from stand_in import python

            python.replace()
