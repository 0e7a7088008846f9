"""Masked language models: text, masks, scores and training.

`run.py` computes an experiment. `corpus.py` has its tokens, `masks.py` draws masks of a corpus, and
`network.py` scores them. `curve.py` scores a corpus, with the errors in `estimates.py`.
`text_scores.py` scores each text by itself; `text_cumulative.py` has masks and errors of one text,
`text_table.py` the table and the groups. Nothing of them is called not final: an error that is not
known is null. `trainer.py` trains (`advance` takes a step).
"""

from mptcore.data.vision import make_importable

make_importable()  # transformers imports torchvision
