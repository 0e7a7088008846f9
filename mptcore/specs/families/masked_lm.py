"""Experiments with masked language models."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mptcore.specs.base import ExperimentId, Problem, Spec
from mptcore.specs.compute import Limits, Machine
from mptcore.specs.evaluate import max_masks_problems, target_problems
from mptcore.specs.experiment import Experiment
from mptcore.specs.masks import Rate
from mptcore.specs.text import PlainText, TextSource
from mptcore.specs.text_scores import TextScores

PAPER_RATES = tuple(round(percent / 100, 2) for percent in range(1, 100))
"""1 %, 2 %, … 99 %: the rates of Table 2 and Fig. 5 (right)."""
CUMULATIVE_STRATA = 20
"""Number of equal parts of the mask sizes from 1 to D. A run with the target cumulative samples
from them."""

BASE = 110_000_000
"""Number of parameters of a BERT-base."""
TOGETHER_BYTES = 2**29
"""Memory that the sequences that are computed together need at least."""
GPU_PART_BYTES = {"scores": 13 * 2**29, "training": 23 * 2**30}
"""Default memory for the sequences that are computed together on a GPU. GPUs cut the same parts if
these are less than GPU_SHARE of their memory: from 24 GB on for scores, from 80 GB on in training.
A smaller GPU gives GPU_SHARE. A few ten thousand tokens are enough for a GPU not to wait for its
host (docs/speed.md)."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"


MAX_LAYERS = 256


class Architecture(Spec):
    """Size of a BERT that uses the checkpoint's vocabulary."""

    hidden_size: Annotated[int, Field(ge=4, le=16_384)]
    """Width of a transformer layer."""
    num_hidden_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    """Number of transformer layers."""
    num_attention_heads: Annotated[int, Field(ge=1, le=256)]
    """Attention heads of a layer. They divide `hidden_size`."""
    intermediate_size: Annotated[int, Field(ge=4, le=65_536)]
    """Width inside a feed-forward layer."""
    max_position_embeddings: Annotated[int, Field(ge=4, le=32_768)] = 512
    """Maximum number of tokens in a sequence."""

    def least_parameters(self) -> int:
        """Return the number of parameters of layers and positions, without those of the
        vocabulary."""
        width = self.hidden_size
        layer = 4 * width**2 + 2 * width * self.intermediate_size
        return self.num_hidden_layers * layer + self.max_position_embeddings * width


class MaskedLmModel(Spec):
    """A masked language model of transformers, with its tokenizer."""

    family: Literal["masked_lm"]
    """Family of the model."""
    checkpoint: Annotated[str, Field(pattern=rf"^{_NAME}(/{_NAME})?$")]
    """Name of a folder in MPT_MODELS_DIR, or id of a model on the hub."""
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] | None = None
    """Revision of the checkpoint on the hub. null: the newest."""
    init: Literal["pretrained", "random", "experiment"] = "pretrained"
    """Source of the weights. `pretrained` uses the checkpoint's; `random` uses only its tokenizer,
    and its architecture or `architecture`; `experiment` uses the weights of a training run."""
    experiment: ExperimentId | None = None
    """Id of the finished training run whose weights are used, with `init: experiment`."""
    architecture: Architecture | None = None
    """Size of the model with `init: random`. null: the checkpoint's size."""
    corruption: Literal["mask", "bert"] = "mask"
    """`mask` replaces an exact number of tokens by the mask token. `bert` draws each token
    independently, replaces 80 % of the drawn tokens, gives 10 % a random token and keeps 10 %.
    `loss_heldout` always uses exact masks."""

    def problems(self, pointer: str) -> list[Problem]:
        """Return the problems of this model."""
        problems = []
        if (self.init == "experiment") != (self.experiment is not None):
            detail = "the id of the experiment whose weights are used; only with init experiment"
            problems.append(Problem(f"{pointer}/experiment", detail))
        if self.architecture is None:
            return problems
        if self.init != "random":
            detail = f"for init random; {self.init} brings its own: leave it null"
            problems.append(Problem(f"{pointer}/architecture", detail))
        size, heads = self.architecture.hidden_size, self.architecture.num_attention_heads
        if size % heads:
            detail = f"a divisor of hidden_size, {size}, not {heads}"
            problems.append(Problem(f"{pointer}/architecture/num_attention_heads", detail))
        return problems


class RateMasks(Spec):
    """`per_size` masks of every sequence at each masking rate."""

    schedule: Literal["rates"] = "rates"
    """Schedule of the mask sizes."""
    rates: Annotated[
        tuple[Rate, ...],
        Field(min_length=1, max_length=10_000),
        AfterValidator(lambda rates: tuple(sorted(rates))),
    ] = PAPER_RATES
    """Masking rates; they are sorted."""
    per_size: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Masks of a sequence at each rate."""

    def problems(self, pointer: str) -> list[Problem]:
        """Return the problems of these masks."""
        if len(set(self.rates)) == len(self.rates):
            return []
        return [Problem(f"{pointer}/rates", "a rate may be listed once only")]


class MaskedLmEvaluate(Spec):
    """The score at each rate, and the area under this curve (in Table 2 of the paper for 99 rates
    and 512 dimensions)."""

    masks: RateMasks = RateMasks()
    """Masks that are scored."""
    dimensions: Annotated[int, Field(ge=2, le=1_000_000)] = 512
    """Number of tokens of the sequence that the area under the curve is for."""
    orders: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Random orders of each sequence. They give the cumulative score at the sequence's own length,
    and its spread over orders. An order costs a forward pass for every token."""
    pll: bool = False
    """True also gives the pseudo-log-likelihood. It costs a forward pass for every token."""
    sequences: Annotated[int, Field(ge=2, le=100_000_000)] | None = None
    """Number of sequences, chosen at random, for `orders` and `pll`. null: all."""
    target_std_err: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Target standard error. Sequences and rates are sampled where they reduce the error most,
    until `target` has this standard error or `max_masks` are scored; `per_size` is not used. null:
    exactly the masks of `masks` are scored."""
    target: Literal["area", "difference", "cumulative"] = "area"
    """Result that `target_std_err` applies to. `area`: the area under the curve. `difference`: the
    model's area minus the baseline's. `cumulative`: the cumulative score, from masks of all sizes
    instead of the rates, without a curve."""
    max_masks: Annotated[int, Field(ge=100, le=1_000_000_000)] = 1_000_000
    """Maximum number of masks for each seed, pilot included, with `target_std_err`."""
    texts: TextScores | None = None
    """Scores of each text. With it the run scores nothing else: `masks` is not used, and there is
    no curve. null: the text is scored as a whole."""

    def problems(self, baseline: bool) -> list[Problem]:
        """Return the problems, with or without a baseline."""
        problems = self.masks.problems("/evaluate/masks")
        if self.texts is not None:
            problems += self.texts.problems() + self._beside_texts()
        problems += target_problems(self.target, "area", self.target_std_err, baseline)
        if self.target_std_err is not None:
            problems += self._target_problems()
        if self.sequences is not None and not (self.orders or self.pll):
            detail = (
                "it limits only the metrics of orders and pll: set one of these, or leave it null"
            )
            problems.append(Problem("/evaluate/sequences", detail))
        return problems

    def _beside_texts(self) -> list[Problem]:
        """Return the measurements that are not possible in a run with scores of each text."""
        others = {"orders": self.orders, "pll": self.pll, "target_std_err": self.target_std_err}
        detail = "a run with texts gives only the scores of each text: leave it out"
        return [Problem(f"/evaluate/{name}", detail) for name, value in others.items() if value]

    def _target_problems(self) -> list[Problem]:
        if self.target != "cumulative":
            return max_masks_problems(self.max_masks, len(self.masks.rates), "rate")
        problems = max_masks_problems(self.max_masks, CUMULATIVE_STRATA, "part of the sizes")
        if self.orders:
            detail = "the target cumulative measures it by masks of its own: leave it 0"
            problems.append(Problem("/evaluate/orders", detail))
        return problems


class FixedRate(Spec):
    """The same rate in every step. BERT uses 15 %."""

    schedule: Literal["fixed"]
    """Schedule of the rates."""
    rate: Rate = 0.15
    """Masking rate."""


class UniformRate(Spec):
    """A mask size for each sequence, uniform from 1 to its length: the objective then estimates the
    cumulative score per token."""

    schedule: Literal["uniform"]
    """Schedule of the rates."""


class RateRamp(Spec):
    """A rate that changes linearly from `start` to `end` during the training."""

    schedule: Literal["ramp"]
    """Schedule of the rates."""
    start: Rate
    """Masking rate at the start of the training."""
    end: Rate
    """Masking rate at the end of the training."""


class RateChoice(Spec):
    """A rate for each sequence, chosen at random."""

    schedule: Literal["rates"]
    """Schedule of the rates."""
    rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=10_000)]
    """Masking rates to choose from."""


TextTrainSchedule = Annotated[
    FixedRate | UniformRate | RateRamp | RateChoice, Field(discriminator="schedule")
]

StepNumber = Annotated[int, Field(ge=0, le=100_000_000)]


class MaskedLmTrain(Spec):
    """Training by AdamW on the masked score."""

    steps: Annotated[int, Field(ge=1, le=100_000_000)]
    """Number of training steps."""
    batch_size: Annotated[int, Field(ge=1, le=1_048_576)] = 32
    """Sequences in a step. Their gradients are accumulated in parts that fit the memory."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-4
    """Maximum learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Weight decay of AdamW."""
    warmup_steps: StepNumber = 0
    """Steps in which the learning rate rises. Afterwards it falls linearly to 0."""
    max_grad_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Maximum norm of the gradient. Larger gradients are scaled down."""
    masks: TextTrainSchedule = FixedRate(schedule="fixed")
    """Masking rates of the steps."""
    evaluate_every: Annotated[int, Field(ge=1, le=100_000_000)] = 100
    """Steps between two records of `loss` (nats per token, as that step computes it) and, with
    held-out text, of `loss_heldout` (with masks of uniform sizes)."""
    curve_at: Annotated[tuple[StepNumber, ...], Field(max_length=1000)] = ()
    """Steps at which the curve that `evaluate` asks for is recorded."""

    @property
    def length(self) -> int:
        """Number of steps."""
        return self.steps

    @property
    def unit(self) -> Literal["steps"]:
        """Unit of the length."""
        return "steps"

    def problems(self) -> list[Problem]:
        """Return the problems of this training."""
        problems = []
        if self.warmup_steps > self.steps:
            detail = f"at most the {self.steps} steps, not {self.warmup_steps}"
            problems.append(Problem("/train/warmup_steps", detail))
        if len(set(self.curve_at)) < len(self.curve_at):
            problems.append(Problem("/train/curve_at", "a step may be listed once only"))
        for i, step in enumerate(self.curve_at):
            if step > self.steps:
                detail = f"a step from 0 to {self.steps}, not {step}"
                problems.append(Problem(f"/train/curve_at/{i}", detail))
        return problems


class MaskedLmCompute(Machine):
    """Device, threads, memory, time limit and precision of a run."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and products. Trained weights are float32, the log-softmax is float32 and
    sums are float64 always. `auto`: bfloat16 on a GPU that has it, else float32."""

    @property
    def in_bfloat16(self) -> bool | None:
        """True if the `run` uses bfloat16. None if this depends on the worker."""
        if self.precision == "auto":
            return {"cpu": False, "cuda": True, "auto": None}[self.device]
        return self.precision == "bfloat16"


class MaskedLmExperiment(Experiment):
    """Experiments with masked language models on text. The model is trained if `train` is given,
    and scored, once for each seed."""

    model: MaskedLmModel
    """Model that is scored."""
    baseline: MaskedLmModel | None = None
    """Second model for the same masks and vocabulary. Results then have the label `model`."""
    data: TextSource
    """Texts."""
    train: MaskedLmTrain | None = None
    """Training before the scores. null: no training."""
    evaluate: MaskedLmEvaluate = MaskedLmEvaluate()
    """Measurements of the model."""
    compute: MaskedLmCompute = MaskedLmCompute()
    """Device, precision, time limit and memory."""

    def problems(self) -> list[Problem]:
        problems = self.data.problems() + self.model.problems("/model")
        if self.baseline:
            problems += self.baseline.problems("/baseline")
            if self.baseline.corruption != self.model.corruption:
                detail = f"both are scored on the same masks: {self.model.corruption} here too"
                problems.append(Problem("/baseline/corruption", detail))
        if self.train:
            problems += self.train.problems()
            if len(self.seeds) > 1:
                detail = "a language model is trained for one seed: send an experiment for each"
                problems.append(Problem("/seeds", detail))
        elif self.data.heldout is not None:
            detail = "it is excluded from training, but train is missing: leave it null"
            problems.append(Problem("/data/heldout", detail))
        if self.model.corruption == "bert":
            problems += self._bernoulli_problems()
        if self.evaluate.texts is not None:
            problems += text_problems(self)
        return problems + self.evaluate.problems(self.baseline is not None)

    def _bernoulli_problems(self) -> list[Problem]:
        """Return the settings that need exact numbers of masked tokens."""
        problems = []
        exact = "exact numbers of tokens, which the corruption bert does not mask"
        if self.train and isinstance(self.train.masks, UniformRate):
            detail = f"uniform is for {exact}: use fixed, ramp or rates"
            problems.append(Problem("/train/masks/schedule", detail))
        if self.evaluate.orders:
            problems.append(Problem("/evaluate/orders", f"these are for {exact}: leave it 0"))
        if self.evaluate.target == "cumulative":
            problems.append(Problem("/evaluate/target", f"cumulative is for {exact}: use area"))
        if self.evaluate.pll:
            problems.append(Problem("/evaluate/pll", f"this is for {exact}: leave it out"))
        return problems

    @property
    def memory_field(self) -> str:
        return "/model/architecture" if self.model.architecture else "/model/checkpoint"

    def memory_estimate(self) -> int:
        """Estimate the memory of a run, in bytes: the weights, in training with gradients and two
        moments, and the sequences that are computed together. Trained weights are in float32;
        products in bfloat16 use a copy of them. A checkpoint counts as a BERT-base."""
        models = [self.model, *([self.baseline] if self.baseline else [])]
        sizes = [m.architecture.least_parameters() if m.architecture else BASE for m in models]
        bfloat16 = self.compute.in_bfloat16
        kept, trained = 2 if bfloat16 else 4, 16 if bfloat16 is False else 18
        weights = (trained if self.train else kept) * sizes[0] + kept * sum(sizes[1:])
        return weights + (self.compute.memory_bytes or TOGETHER_BYTES)

    def gpu_part_bytes(self) -> int:
        use = "training" if self.train else "scores"
        return 0 if self.compute.memory_bytes else GPU_PART_BYTES[use]

    def artifact_bytes(self) -> int:
        """Estimate the bytes of the table of texts: 0 if the number of texts is not known yet."""
        texts = self.evaluate.texts
        return 0 if texts is None else sum(map(texts.row_bytes, self.data.text_lengths()))

    def curve_points(self) -> tuple[int, int]:
        """Return the points without interim ones: their number depends on the text."""
        if self.evaluate.texts is not None:
            return 0, 0
        return len(self.evaluate.masks.rates) * (2 * self.models - 1), 0

    def limit_problems(self, limits: Limits) -> list[Problem]:
        problems = []
        for pointer, model in (("/model", self.model), ("/baseline", self.baseline)):
            size = model.architecture if model else None
            needed = 16 * size.least_parameters() if size else 0  # with gradients and two moments
            if needed > limits.memory_bytes:
                detail = (
                    f"a run takes at most {limits.memory_bytes >> 20} MiB; this takes "
                    f"{needed >> 20} in training, the vocabulary not counted"
                )
                problems.append(Problem(f"{pointer}/architecture", detail))
        return problems + super().limit_problems(limits)


def text_problems(spec: MaskedLmExperiment) -> list[Problem]:
    """Return the settings that a run with scores of each text cannot use."""
    texts, data = spec.evaluate.texts, spec.data
    assert texts is not None
    refused = {
        "/train": (spec.train, "score a trained model's texts by another run, init: experiment"),
        "/baseline": (spec.baseline, "texts are scored by one model: send a run for each"),
        "/seeds": (len(spec.seeds) > 1, "texts are scored once: give one seed"),
        "/data/packing": (data.packing == "blocks", "each text is a sequence here: use sentences"),
        "/model/corruption": (spec.model.corruption == "bert", "texts are scored with mask"),
        "/evaluate/texts/wild_type": (
            texts.wild_type is not None and not isinstance(data, PlainText),
            "mutations are in lines, files and uploads, of the source text",
        ),
    }
    problems = [Problem(pointer, detail) for pointer, (given, detail) in refused.items() if given]
    if texts.columns and not data.has_columns:
        detail = "columns are in .jsonl, .csv and .parquet files and uploads, of the source text"
        problems.append(Problem(f"/evaluate/texts/{next(iter(texts.columns))}", detail))
    return problems
