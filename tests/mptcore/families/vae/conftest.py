"""A case whose posteriors have several modes, and its truth by quadrature."""

import pytest

from benchmarks.calibration.vae import Case, folded


@pytest.fixture(scope="session")
def several_modes() -> Case:
    """Sixteen observations; finer grids change the evidence by 2e-6."""
    return folded(n=16, nodes=200)
