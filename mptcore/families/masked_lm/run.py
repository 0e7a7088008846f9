"""Experiments on language models: from a spec to its records."""

from dataclasses import dataclass, field

import torch

from mptcore.estimation.evaluate import Work
from mptcore.families.masked_lm import corpus
from mptcore.families.masked_lm.checkpoints import (
    FAMILY,
    Checkpoint,
    Tokenizer,
    network_of,
    positions,
    weights_header,
)
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.evaluate import TextEvaluation, total_masks
from mptcore.families.masked_lm.masked_batch import Masker
from mptcore.families.masked_lm.model import MaskedLm
from mptcore.families.masked_lm.trainer import TextTrainer, train
from mptcore.protocol.records import Artifact, Labels, Log, RunError
from mptcore.runtime.rng import stream
from mptcore.runtime.session import Session, Tape, TrainingState
from mptcore.runtime.tensor_files import keep_weights, weights_digest
from mptcore.specs import MaskedLmModel, TextExperiment


@dataclass
class TextRun:
    """Trains and scores one spec."""

    spec: TextExperiment
    session: Session
    device: torch.device
    dtype: torch.dtype
    total: int = 0
    """Masks to be scored in all, once the text is read."""
    _done: int = field(default=0, init=False)

    def records(self, resumed: TrainingState | None) -> Work:
        """All records, each with the number of masks scored so far. Raises RunError."""
        spec = self.spec
        tokenizer = Checkpoint.of(spec.model).tokenizer()
        models = self._models(tokenizer, spec.seeds[0])
        for name, own in self._specs().items():
            yield 0, Log("info", f"{name}: {_origin(own)}")
        longest = min(positions(model.config) for model in models.values())
        text = corpus.read(spec.data, tokenizer, longest)
        yield 0, Log("info", _description(text, spec.data.max_length, longest))
        self._check_vocabularies(models, tokenizer, text)
        learned, scored = self._split(text)
        self.total = self._total(scored)
        for number, seed in enumerate(spec.seeds):
            if number > 0:
                models = self._models(tokenizer, seed)
            yield from self._of_seed(seed, models, learned, scored, tokenizer, resumed)

    def _of_seed(
        self,
        seed: int,
        models: dict[str, MaskedLm],
        learned: Corpus,
        scored: Corpus,
        tokenizer: Tokenizer,
        resumed: TrainingState | None,
    ) -> Work:
        vocabulary = min(len(tokenizer), *(m.config.vocab_size for m in models.values()))
        masker = self._masker(scored, tokenizer, vocabulary)
        labels = {"seed": seed}
        if self.spec.train is not None:
            trainer = TextTrainer(
                self.spec.train, models["model"], self._masker(learned, tokenizer, vocabulary), seed
            )

            def curve(step: int) -> Work:
                own = {**labels, "step": step}
                evaluation = self._evaluation({"model": models["model"]}, masker, own, Tape())
                yield from evaluation.records(stream(seed, "curve"))

            held = None if self.spec.data.heldout is None else masker
            for done, record in train(trainer, self.session, resumed, curve, held, labels):
                self._done = done
                yield done, record
            final = trainer.trained(self.session.seq, self._done)
            self.session.training = lambda: final
            yield self._done, self._keep(trainer, tokenizer)
        self.session.at_rest = True
        before = self._done
        evaluation = self._evaluation(models, masker, labels, self.session.tape)
        for done, record in evaluation.records(stream(seed, "masks")):
            self._done = before + done
            yield self._done, record
        self._done = before + evaluation.total

    def _specs(self) -> dict[str, MaskedLmModel]:
        baseline = {"baseline": self.spec.baseline} if self.spec.baseline else {}
        return {"model": self.spec.model} | baseline

    def _models(self, tokenizer: Tokenizer, seed: int) -> dict[str, MaskedLm]:
        memory = self.spec.compute.memory_bytes
        return {
            name: MaskedLm(network_of(own, tokenizer, seed).eval(), self.device, self.dtype, memory)
            for name, own in self._specs().items()
        }

    def _evaluation(
        self, models: dict[str, MaskedLm], masker: Masker, labels: Labels, tape: Tape
    ) -> TextEvaluation:
        return TextEvaluation(self.spec.evaluate, models, masker, labels, tape)

    def _masker(self, text: Corpus, tokenizer: Tokenizer, vocabulary: int) -> Masker:
        return Masker(text, tokenizer.mask_token_id, vocabulary, self.spec.model.corruption)

    def _split(self, text: Corpus) -> tuple[Corpus, Corpus]:
        """What is trained on, and what is scored."""
        share = self.spec.data.heldout
        if share is None:
            return text, text
        if len(text) < 2:
            raise RunError("invalid", "data.heldout needs two sequences or more; the text has one")
        order = torch.randperm(len(text), generator=stream(self.spec.data.seed, "heldout"))
        held = min(len(text) - 1, max(1, round(share * len(text))))
        return text.subset(order[held:].sort().values), text.subset(order[:held].sort().values)

    def _total(self, scored: Corpus) -> int:
        one = total_masks(self.spec.evaluate, scored)
        if self.spec.train is None:
            return one * len(self.spec.seeds)
        train = self.spec.train
        return one * (1 + len(train.curve_at)) + train.steps * train.batch_size

    def _check_vocabularies(
        self, models: dict[str, MaskedLm], tokenizer: Tokenizer, text: Corpus
    ) -> None:
        if self.spec.baseline is not None:
            other = Checkpoint.of(self.spec.baseline).tokenizer()
            if other.get_vocab() != tokenizer.get_vocab():
                detail = "score differences are between models of one vocabulary"
                raise RunError("invalid", f"the baseline has another tokenizer: {detail}")
        for name, model in models.items():
            size = model.config.vocab_size
            if int(text.ids.max()) >= size or tokenizer.mask_token_id >= size:
                detail = f"its tokenizer has more tokens than its {size} weights"
                raise RunError("invalid", f"the {name}'s checkpoint does not fit: {detail}")

    def _keep(self, trainer: TextTrainer, tokenizer: Tokenizer) -> Artifact | Log:
        if self.session.work_dir is None:
            return Log("info", "the weights are not kept: no work directory was given")
        header = weights_header(trainer.model.config, tokenizer)
        return keep_weights(FAMILY, trainer.weights(), header, self.session.work_dir)


def _origin(spec: MaskedLmModel) -> str:
    """What runs, and the digest of its files."""
    digest = Checkpoint.of(spec).digest(weights=spec.init == "pretrained")
    said = f"{spec.checkpoint}, {spec.init}, files sha256 {digest}"
    if spec.experiment is None:
        return said
    return f"{said}, weights of {spec.experiment} sha256 {weights_digest(spec.experiment)}"


def _description(text: Corpus, asked: int, longest: int) -> str:
    said = f"{len(text)} sequences, {int(text.sizes.sum())} tokens that can be masked"
    if text.left_out:
        said += f"; {text.left_out} sequences with fewer than two were left out"
    if longest < asked:
        said += f"; cut at the model's {longest} tokens, not max_length {asked}"
    return said
