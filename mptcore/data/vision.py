"""Make torchvision importable together with a torch for which its compiled operators were not
built.

With such a torch (a wheel of another index, for the CPU alone) `import torchvision` fails because
the schemas of two operators are missing, and so does `import transformers`, which imports it. The
data sets, the transforms and transformers do not use these operators.

A line in site-packages (mptlab-server.pth) calls `make_importable` in each Python process that
looks for torchvision, so that a user's own imports work too. So this module must load nothing.
"""

import importlib
import sys
from types import ModuleType
from typing import Any, cast

_kept: list[Any] = []


class _MissingOperators:
    """An import hook that finds no module, but defines the operators just before torchvision uses
    them: after it has tried to load its own."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "torchvision._meta_registrations" and not _kept:
            if not importlib.import_module("torchvision.extension")._has_ops():
                _define_operators()


def _define_operators() -> None:
    from torch import library  # seconds, for torch

    schemas = cast(Any, library).Library("torchvision", "DEF")
    schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(schemas)  # the definitions live as long as their library


def make_importable() -> None:
    """Let `import torchvision` succeed. Call it before anything imports torchvision."""
    if _MissingOperators not in sys.meta_path:
        sys.meta_path.insert(0, _MissingOperators)


def torchvision_datasets() -> ModuleType:
    """Return the module torchvision.datasets."""
    make_importable()
    return importlib.import_module("torchvision.datasets")
