"""Models with latent variables that are integrated out numerically: linear and deep VAEs.

`run.py` computes an experiment, and `trainer.py` trains (`advance` takes an epoch). `grid.py`
scores by quadrature. `sampled.py` scores by importance sampling: `proposal.py` fits the proposals,
`importance.py` has their weights and the error of log p(x), `conditionals.py` the errors of scores.
`ais.py` anneals. They say when log p(x) is not final (`grid_evidence`, `weight_evidence`,
`compared`).
"""
