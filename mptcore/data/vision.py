"""Repair a torchvision that does not fit torch: beside it `import transformers` fails."""

import importlib
from importlib.util import find_spec
from typing import Any

from torch import library

_kept: list[library.Library] = []


def repair_torchvision() -> None:
    """Make torchvision importable where someone has installed it for another build of torch.

    This project does not need it, but transformers imports it where it is installed. Such an import
    fails because two operator schemas are missing, which are defined here. Where torchvision
    defines them itself a second definition would raise, so this comes after the failure only.
    """
    if find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        schemas: Any = library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(schemas)  # the definitions live as long as their library
