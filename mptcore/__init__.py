"""The scores, estimators and models of masked pre-training (MPT), as a filter.

Letters used in every shape of this package:
N observations, D dimensions (or tokens), K latent dimensions, M mask size, P masks of each size,
B masks in one batch, G nodes of a grid.
"The paper" is Moreno-Muñoz, Recasens, Hauberg, "On Masked Pre-training and the Marginal
Likelihood" (2023, arXiv 2306.00520). Every value is in nats, a mean over observations, unless its
name says otherwise.
"""
