"""PPCA and factor analysis: Gaussians whose covariance is low rank plus diagonal.

`run.py` computes an experiment. `initial.py` and `fit.py` make its densities, `trainer.py` trains
them (`advance` takes one epoch, or several in one compiled call), and `routes.py` chooses the
solver that scores them (`solver_for`). `kernels/` has the compiled loops.
"""
