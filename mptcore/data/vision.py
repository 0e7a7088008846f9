"""The only module that imports torchvision."""

import importlib
from types import ModuleType
from typing import Any

from torch import library

_kept: list[library.Library] = []


def torchvision_datasets() -> ModuleType:
    """The module torchvision.datasets, also beside a torch for which torchvision's compiled
    operators were not built (a wheel of another index): there `import torchvision` fails because
    two operator schemas are missing. They are defined and the import is tried again; the data sets
    do not use them. Where torchvision defines them itself a second definition would raise, so this
    comes after the failure only."""
    try:
        return importlib.import_module("torchvision.datasets")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    schemas: Any = library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(schemas)  # the definitions live as long as their library
    return importlib.import_module("torchvision.datasets")
