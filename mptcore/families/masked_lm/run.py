"""Run experiments on language models."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mptcore.families.masked_lm import corpus, text_rows
from mptcore.families.masked_lm.checkpoints import (
    FAMILY,
    PretrainedSource,
    Tokenizer,
    network_of,
    positions,
    weights_header,
)
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.curve import CorpusEvaluation, total_masks
from mptcore.families.masked_lm.masks import Masker
from mptcore.families.masked_lm.mutations import MutationScoring
from mptcore.families.masked_lm.mutations import read as read_mutations
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.text_rows import TextRow, Texts
from mptcore.families.masked_lm.text_scores import TextScoring
from mptcore.families.masked_lm.trainer import MaskedLmTrainer
from mptcore.protocol.records import Labels, Log, Metric, RunError
from mptcore.runtime.rng import generator_for
from mptcore.runtime.state import Records, RunState, TrainingState
from mptcore.runtime.tensor_files import keep_weights, weights_digest
from mptcore.specs import MaskedLmExperiment, MaskedLmModel, TextScores
from mptcore.training.loop import train

Models = dict[str, MaskedLm]


@dataclass(frozen=True)
class LoadedText:
    """Tokenizer and texts of an experiment. Both texts are the same if none is held out."""

    tokenizer: Tokenizer
    trained_on: Corpus
    scored: Corpus

    def masker(self, text: Corpus, models: Models, corruption: str) -> Masker:
        """Return the masker of a text for some models."""
        sizes = [model.config.vocab_size for model in models.values()]
        vocabulary = min(len(self.tokenizer), *sizes)
        return Masker(text, self.tokenizer.mask_token_id, vocabulary, corruption)


@dataclass
class MaskedLmRun:
    """Train and score one spec."""

    spec: MaskedLmExperiment
    state: RunState
    device: torch.device
    dtype: torch.dtype

    def records(self, resumed: TrainingState | None) -> Records[None]:
        spec = self.spec
        tokenizer = PretrainedSource.of(spec.model).tokenizer()
        models = self._models(tokenizer, spec.seeds[0])
        for name, model in self._specs().items():
            yield Log("info", f"{name}: {_origin(model)}")
        longest = min(positions(model.config) for model in models.values())
        if spec.evaluate.texts is not None:
            yield from self._score_texts(spec.evaluate.texts, models, tokenizer, longest)
            return
        text = corpus.read(spec.data, tokenizer, longest)
        description = _description(text, spec.data.max_length, longest)
        yield Log("warning" if text.left_out else "info", description)
        yield from _cuts(text, min(spec.data.max_length, longest))
        _check_vocabularies(spec, models, tokenizer, text)
        loaded = LoadedText(tokenizer, *self._split(text))
        self.state.max_masks = self._total(loaded.scored)
        if spec.train is not None:
            yield from self._train(models, loaded, resumed)
        self.state.at_safe_point = True
        for number, seed in enumerate(spec.seeds):
            if number > 0:
                models = self._models(tokenizer, seed)
            yield from self._evaluate(seed, models, loaded, last=number == len(spec.seeds) - 1)

    def _score_texts(
        self, scores: TextScores, models: Models, tokenizer: Tokenizer, longest: int
    ) -> Records[None]:
        """Score each text. The spec allows only one model and one seed."""
        spec, (seed,) = self.spec, self.spec.seeds
        limit = min(spec.data.max_length, longest)
        mutations = None
        if scores.wild_type is not None:
            mutations = read_mutations(spec.data, scores, tokenizer, limit)
        texts = (
            mutations.table if mutations else text_rows.read(spec.data, scores, tokenizer, limit)
        )
        _check_vocabularies(spec, models, tokenizer, texts.corpus)
        without = [row for row in texts.rows if row.reason is not None]
        detail = f"{len(texts.rows)} texts, {len(without)} of them without scores"
        if without:
            detail += f", such as text {without[0].row}: {without[0].reason}"
        yield Log("warning" if without else "info", detail)
        if unknown := [row for row in texts.rows if row.unknown]:
            yield Log("warning", _unknown(unknown, texts, mutations is not None))
        if in_windows := int((texts.windows.counts > 1).sum()):
            detail = f"of the texts have more than {limit} tokens and are scored in windows"
            yield Log("info", f"{in_windows} {detail}")
        text = mutations.wild_type if mutations else texts.windows.corpus
        masker = LoadedText(tokenizer, text, text).masker(text, models, spec.model.corruption)
        labels: Labels = {"seed": seed}
        model = models["model"]
        scoring = (
            MutationScoring(scores, mutations, model, masker, self.state, labels)
            if mutations
            else TextScoring(scores, texts, model, masker, self.state, labels)
        )
        self.state.max_masks = scoring.total_masks()
        self.state.at_safe_point = True
        table = yield from scoring.records(seed)
        yield from table.metrics()
        yield table.keep(self.state.work_dir)

    def _train(
        self, models: Models, text: LoadedText, resumed: TrainingState | None
    ) -> Records[None]:
        """Train the model. The spec allows only one seed."""
        assert self.spec.train is not None
        (seed,) = self.spec.seeds
        corruption = self.spec.model.corruption
        scored = text.masker(text.scored, models, corruption)
        heldout = None if self.spec.data.heldout is None else scored
        masker = text.masker(text.trained_on, models, corruption)
        trainer = MaskedLmTrainer(self.spec.train, models["model"], masker, heldout, seed)

        def curves(step: int) -> Records[None]:
            labels: Labels = {"seed": seed, "step": step}
            model = {"model": models["model"]}
            evaluation = self._evaluation(model, scored, labels)
            yield from evaluation.records(generator_for(seed, "curve"))

        yield from train(trainer, self.state, resumed, curves)
        header = weights_header(trainer.model.config, text.tokenizer)
        yield keep_weights(FAMILY, trainer.weights(), header, self.state.work_dir)

    def _evaluate(self, seed: int, models: Models, text: LoadedText, last: bool) -> Records[None]:
        masker = text.masker(text.scored, models, self.spec.model.corruption)
        evaluation = self._evaluation(models, masker, {"seed": seed})
        before, begun = self.state.masks, len(self.state.plans)
        yield from evaluation.records(generator_for(seed, "masks"))
        if not last:  # sequences that were chosen at random have another length than expected
            left_out = sum(plan.unused for plan in self.state.plans[begun:])
            expected = before + total_masks(self.spec.evaluate, text.scored) - left_out
            self.state.count(expected - self.state.masks)
            yield None

    def _evaluation(self, models: Models, masker: Masker, labels: Labels) -> CorpusEvaluation:
        return CorpusEvaluation(self.spec.evaluate, models, masker, labels, self.state)

    def _specs(self) -> dict[str, MaskedLmModel]:
        baseline = {"baseline": self.spec.baseline} if self.spec.baseline else {}
        return {"model": self.spec.model} | baseline

    def _models(self, tokenizer: Tokenizer, seed: int) -> Models:
        memory = self.spec.compute.memory_bytes
        models = {}
        for name, spec in self._specs().items():
            network = network_of(spec, tokenizer, seed).eval()
            trained = name == "model" and self.spec.train is not None
            models[name] = MaskedLm(network, self.device, self.dtype, memory, trained)
        return models

    def _split(self, text: Corpus) -> tuple[Corpus, Corpus]:
        """Return the training text and the scored text."""
        share = self.spec.data.heldout
        if share is None:
            return text, text
        if len(text) < 2:
            raise RunError("invalid", "data.heldout needs two sequences or more; the text has one")
        order = torch.randperm(len(text), generator=generator_for(self.spec.data.seed, "heldout"))
        held = min(len(text) - 1, max(1, round(share * len(text))))
        return text.subset(order[held:].sort().values), text.subset(order[:held].sort().values)

    def _total(self, scored: Corpus) -> int:
        of_seed = total_masks(self.spec.evaluate, scored)
        if self.spec.train is None:
            return of_seed * len(self.spec.seeds)
        train = self.spec.train
        return of_seed * (1 + len(train.curve_at)) + train.steps * train.batch_size


def _check_vocabularies(
    spec: MaskedLmExperiment, models: Models, tokenizer: Tokenizer, text: Corpus
) -> None:
    if spec.baseline is not None:
        other = PretrainedSource.of(spec.baseline).tokenizer()
        if other.get_vocab() != tokenizer.get_vocab():
            detail = "score differences need models with the same vocabulary"
            raise RunError("invalid", f"the baseline has another tokenizer: {detail}")
    for name, model in models.items():
        size = model.config.vocab_size
        if int(text.ids.max()) >= size or tokenizer.mask_token_id >= size:
            detail = f"its tokenizer has more tokens than its {size} weights"
            raise RunError("invalid", f"the {name}'s checkpoint does not fit: {detail}")


def _origin(spec: MaskedLmModel) -> str:
    """Return the name of the model and the digest of its files."""
    digest = PretrainedSource.of(spec).digest(weights=spec.init == "pretrained")
    origin = f"{spec.checkpoint}, {spec.init}, files sha256 {digest}"
    if spec.experiment is None:
        return origin
    return f"{origin}, weights of {spec.experiment} sha256 {weights_digest(spec.experiment)}"


def _description(text: Corpus, asked: int, longest: int) -> str:
    """Return a description of the text. `asked` is the spec's max_length, `longest` the models'."""
    parts = [f"{len(text)} sequences, {int(text.sizes.sum())} tokens that can be masked"]
    if text.left_out:
        parts.append(f"{text.left_out} sequences without one were left out")
    if longest < asked:
        parts.append(f"the model takes {longest} tokens, not max_length {asked}")
    return "; ".join(parts)


UNKNOWN = "characters that the tokenizer does not know, or names of special tokens"


def _unknown(rows: Sequence[TextRow], texts: Texts, are_mutations: bool) -> str:
    """Return a warning of texts with unknown tokens."""
    if are_mutations:
        return f"the wild type has {UNKNOWN}: all scores depend on them"
    message = f"{len(rows)} of {len(texts.rows)} texts have {UNKNOWN}, such as text {rows[0].row}"
    return f"{message}: the column unknown counts them, and scores do not tell them apart"


def _cuts(text: Corpus, length: int) -> Records[None]:
    """Record how many texts were left out or truncated."""
    yield Metric("sequences_left_out", text.left_out, 0.0)
    yield Metric("sequences_cut", text.cut, 0.0)
    if text.unknown:
        yield Log("warning", f"{text.unknown} of {len(text)} sequences have {UNKNOWN}")
    if text.cut:
        of = len(text) + text.left_out
        detail = "tokens beyond that are not scored: raise max_length, or use the packing blocks"
        yield Log("warning", f"{text.cut} of {of} texts were cut at {length} tokens; {detail}")
