"""A pytest plugin that puts a mutant in place of its module before anything imports it.

Used as `pytest -p tests.mutation.at_import`; reads MUTANT_PATH and MUTANT_NAME.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

from tests.mutation.mutants import Mutant, mutants_of


class _Mutated(importlib.machinery.SourceFileLoader):
    """Loads a mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(mutant.path))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return self._mutant.code()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._mutant.module:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._mutant.path, loader=_Mutated(self._mutant)
        )


def _wanted() -> Mutant:
    name = os.environ["MUTANT_NAME"]
    mutants = mutants_of(Path(os.environ["MUTANT_PATH"]), name.partition(" ")[0])
    return next(mutant for mutant in mutants if mutant.name == name)


_mutant = _wanted()
if _mutant.module in sys.modules:
    raise RuntimeError("the module was imported before the mutant could be put in its place")
sys.meta_path.insert(0, _Finder(_mutant))
