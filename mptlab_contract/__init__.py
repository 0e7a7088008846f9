"""The contract of a model that can be scored, as pytest classes. The tests of a family inherit one,
also those of a family in a package of its own. It needs pytest: the extra `contract` installs it.
"""

import pytest

pytest.register_assert_rewrite("mptlab_contract.contract")  # before its import

from mptlab_contract.contract import (
    DEVICES,
    ModelContract,
    SpecPart,
    TractableContract,
    assert_alike,
    every_mask,
    masks_of,
    records,
)

__all__ = [
    "DEVICES",
    "ModelContract",
    "SpecPart",
    "TractableContract",
    "assert_alike",
    "every_mask",
    "masks_of",
    "records",
]
