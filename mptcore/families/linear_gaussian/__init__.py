"""PPCA and factor analysis: Gaussians whose covariance is low rank plus diagonal.

`run.py` computes an experiment. `initial.py` and `fit.py` make its densities, `trainer.py` trains
them (`advance` takes an epoch), and `routes.py` chooses the solver that scores them (`solver_for`).
`kernels/` has the compiled loops.
"""
