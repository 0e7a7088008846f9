"""Experiments on masked language models."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mptcore.specs.base import ExperimentId, Problem, Seeds, Spec, reject, seed_problems
from mptcore.specs.compute import Limits, Machine
from mptcore.specs.data.text import TextSource
from mptcore.specs.evaluate import max_masks_problems, target_problems
from mptcore.specs.masks import Rate
from mptcore.specs.points import SERIES_OF_A_STEP, PointCount, recorded_steps
from mptcore.specs.train import one_or_more

PAPER_RATES = tuple(round(percent / 100, 2) for percent in range(1, 100))
"""1 %, 2 %, … 99 %: the rates of Table 2 and Fig. 5 (right)."""
CUMULATIVE_STRATA = 20
"""Equal parts of the mask sizes from 1 to D, from which a run with the target cumulative draws."""

BASE = 110_000_000
"""Parameters of a BERT-base."""
TOGETHER_BYTES = 2**29
"""For the sequences that are computed together, where the spec does not say."""

LmObjective = Literal["mpt"]
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"


class Architecture(Spec):
    """A BERT of another size than the checkpoint's, in its vocabulary."""

    hidden_size: Annotated[int, Field(ge=4, le=16_384)]
    num_hidden_layers: Annotated[int, Field(ge=1, le=256)]
    num_attention_heads: Annotated[int, Field(ge=1, le=256)]
    intermediate_size: Annotated[int, Field(ge=4, le=65_536)]
    max_position_embeddings: Annotated[int, Field(ge=4, le=32_768)] = 512

    def least_parameters(self) -> int:
        """Those of the layers and positions; the vocabulary comes on top."""
        width = self.hidden_size
        layer = 4 * width**2 + 2 * width * self.intermediate_size
        return self.num_hidden_layers * layer + self.max_position_embeddings * width


class MaskedLmModel(Spec):
    """A masked language model of transformers with its tokenizer.

    `checkpoint` is a name in the folder MPT_MODELS_DIR, or an id of the hub, with its `revision`.
    `init`: random keeps the checkpoint's tokenizer and its architecture, or `architecture`;
    experiment takes the weights that the finished training run `experiment` kept. `corruption`:
    mask replaces an exact number of tokens by the mask token; bert draws each token by itself, and
    of those drawn replaces 80 %, gives 10 % a random token and leaves 10 % as they are.
    `loss_heldout` is under exact masks, whatever the corruption.
    """

    family: Literal["masked_lm"]
    checkpoint: Annotated[str, Field(pattern=rf"^{_NAME}(/{_NAME})?$")]
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] | None = None
    init: Literal["pretrained", "random", "experiment"] = "pretrained"
    experiment: ExperimentId | None = None
    architecture: Architecture | None = None
    corruption: Literal["mask", "bert"] = "mask"

    def problems(self, pointer: str) -> list[Problem]:
        problems = []
        if (self.init == "experiment") != (self.experiment is not None):
            detail = "the id of the experiment whose weights are taken, with init experiment only"
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
    rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=10_000, strict=False)] = (
        PAPER_RATES
    )
    per_size: Annotated[int, Field(ge=1, le=10_000)] = 1

    def problems(self, pointer: str) -> list[Problem]:
        if all(a < b for a, b in zip(self.rates, self.rates[1:], strict=False)):
            return []
        return [Problem(f"{pointer}/rates", "rates rise, each listed once")]


class TextEvaluate(Spec):
    """What is measured: the score at each rate, and the area under it for a sequence of
    `dimensions` tokens (Table 2 of the paper: the 99 rates, 512).

    `orders`: so many random orders of each sequence give the cumulative score at the sequence's own
    length and the spread over orders; one order costs a forward pass for every token. `pll`: the
    pseudo-log-likelihood, as many. `sequences`: these metrics of so many sequences, chosen at
    random. With `target_std_err` sequences and rates are sampled, where they reduce the error most,
    until the `target` has that standard error or `max_masks` are scored; `per_size` is then not
    used. Targets: area; difference, that between the areas of the model and the baseline;
    cumulative, for which masks of all sizes take the place of the rates, and there is no curve.
    """

    masks: RateMasks = RateMasks()
    dimensions: Annotated[int, Field(ge=2, le=1_000_000)] = 512
    orders: Annotated[int, Field(ge=0, le=10_000)] = 0
    pll: bool = False
    sequences: Annotated[int, Field(ge=2, le=100_000_000)] | None = None
    target_std_err: Annotated[float, Field(gt=0, le=1e6)] | None = None
    target: Literal["area", "difference", "cumulative"] = "area"
    max_masks: Annotated[int, Field(ge=100, le=1_000_000_000)] = 1_000_000

    def problems(self, baseline: bool) -> list[Problem]:
        """What is wrong, with or without a baseline."""
        problems = self.masks.problems("/evaluate/masks")
        problems += target_problems(self.target, "area", self.target_std_err, baseline)
        if self.target_std_err is not None:
            problems += self._target_problems()
        if self.sequences is not None and not (self.orders or self.pll):
            detail = "it limits the metrics of orders and pll: ask for one, or leave it null"
            problems.append(Problem("/evaluate/sequences", detail))
        return problems

    def _target_problems(self) -> list[Problem]:
        if self.target != "cumulative":
            return max_masks_problems(self.max_masks, len(self.masks.rates), "rate")
        problems = max_masks_problems(self.max_masks, CUMULATIVE_STRATA, "part of the sizes")
        if self.orders:
            detail = "the target cumulative measures it by masks of its own: leave it 0"
            problems.append(Problem("/evaluate/orders", detail))
        return problems


class FixedRate(Spec):
    """The same rate at every step: BERT's own is 15 %."""

    schedule: Literal["fixed"]
    rate: Rate = 0.15


class UniformRate(Spec):
    """A size for each sequence, uniform from 1 to its length: the objective then estimates the
    cumulative score per token."""

    schedule: Literal["uniform"]


class RateRamp(Spec):
    """A rate that goes linearly from `start` to `end` over the training."""

    schedule: Literal["ramp"]
    start: Rate
    end: Rate


class RateChoice(Spec):
    """One of these rates for each sequence, at random."""

    schedule: Literal["rates"]
    rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=10_000, strict=False)]


TextTrainSchedule = Annotated[
    FixedRate | UniformRate | RateRamp | RateChoice, Field(discriminator="schedule")
]

StepNumber = Annotated[int, Field(ge=0, le=100_000_000)]


class TextTrain(Spec):
    """Training by AdamW on the masked score: `steps` steps of `batch_size` sequences, whose
    gradients are accumulated in parts that fit the memory. The learning rate rises over
    `warmup_steps` and then falls linearly to 0. Every `evaluate_every` steps `loss` (nats per
    token, as that step sees it) and, with held-out text, `loss_heldout` (under masks of uniform
    sizes) are recorded; at the steps `curve_at` the curve that `evaluate` asks for."""

    objective: Annotated[
        tuple[LmObjective, ...],
        Field(min_length=1, max_length=1, strict=False),
        one_or_more(LmObjective),
    ] = ("mpt",)
    steps: Annotated[int, Field(ge=1, le=100_000_000)]
    batch_size: Annotated[int, Field(ge=1, le=1_048_576)] = 32
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-4
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    warmup_steps: StepNumber = 0
    max_grad_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    masks: TextTrainSchedule = FixedRate(schedule="fixed")
    evaluate_every: Annotated[int, Field(ge=1, le=100_000_000)] = 100
    curve_at: Annotated[tuple[StepNumber, ...], Field(max_length=1000, strict=False)] = ()

    @property
    def length(self) -> int:
        """The number of steps."""
        return self.steps

    @property
    def unit(self) -> Literal["steps"]:
        """What its length counts."""
        return "steps"

    def problems(self) -> list[Problem]:
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


class TextCompute(Machine):
    """Where and how precisely it is computed. With bfloat16 weights and products are; trained
    weights stay in float32. The log-softmax is in float32 and sums in float64 always. auto:
    bfloat16 on a GPU that has it, float32 elsewhere."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"

    @property
    def in_bfloat16(self) -> bool | None:
        """As far as the spec tells; None where it depends on the worker that takes the run."""
        if self.precision == "auto":
            return {"cpu": False, "cuda": True, "auto": None}[self.device]
        return self.precision == "bfloat16"


class TextExperiment(Spec):
    """One experiment: a masked language model, trained first where `train` says how, is scored on
    text, once for each seed. `baseline` is a second model, of the same vocabulary, scored on the
    same masks; series and metrics then carry the label `model`."""

    model: MaskedLmModel
    baseline: MaskedLmModel | None = None
    data: TextSource
    train: TextTrain | None = None
    evaluate: TextEvaluate = TextEvaluate()
    seeds: Seeds = (0,)
    compute: TextCompute = TextCompute()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
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
            detail = "it is kept out of training, and there is none: leave it null"
            problems.append(Problem("/data/heldout", detail))
        if self.model.corruption == "bert":
            problems += self._bernoulli_problems()
        problems += self.evaluate.problems(self.baseline is not None) + seed_problems(self.seeds)
        if problems:
            reject(problems)
        return self

    def _bernoulli_problems(self) -> list[Problem]:
        """What needs exact numbers of masked tokens."""
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

    def mask_count(self) -> int | None:
        """How many masks are scored is known once the text is read."""
        return None

    @property
    def memory_field(self) -> str:
        """The part of the spec that most of the memory depends on."""
        return "/model/architecture" if self.model.architecture else "/model/checkpoint"

    def memory_estimate(self) -> int:
        """About how many bytes a run takes: the weights, in training with gradients and two
        moments, and the sequences that are computed together. Weights that are trained are in
        float32; products in bfloat16 take a copy of them. A checkpoint is taken for a BERT-base."""
        models = [self.model, *([self.baseline] if self.baseline else [])]
        sizes = [m.architecture.least_parameters() if m.architecture else BASE for m in models]
        bfloat16 = self.compute.in_bfloat16
        kept, trained = 2 if bfloat16 else 4, 16 if bfloat16 is False else 18
        weights = (trained if self.train else kept) * sizes[0] + kept * sum(sizes[1:])
        return weights + (self.compute.memory_bytes or TOGETHER_BYTES)

    def point_count(self) -> PointCount:
        """How many points a run writes at most, the interim ones left out: how many these are
        depends on the text."""
        train, models = self.train, 2 if self.baseline else 1
        curves = 1 + len(train.curve_at if train else ())
        recorded = recorded_steps(train.steps, train.evaluate_every) if train else 0
        return PointCount(
            curve=len(self.seeds) * curves * len(self.evaluate.masks.rates) * (2 * models - 1),
            convergence=0,
            training=len(self.seeds) * recorded * SERIES_OF_A_STEP,
        )

    def limit_problems(self, limits: Limits) -> list[Problem]:
        """What is too large, as far as the spec tells."""
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
        return problems + self.point_count().problems(limits)
