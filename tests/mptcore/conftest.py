"""Fixtures for the tests of the core."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run in parallel. Two threads would wait for each other by spinning, and use twice the
    CPU time for such small tensors."""
    torch.set_num_threads(1)
