"""Fixtures for the tests of the core."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run beside each other. Two threads take turns to wait for the other by spinning, and
    with tensors as small as these twice the processor's time."""
    torch.set_num_threads(1)
