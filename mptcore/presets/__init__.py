"""The paper's experiments, and claims of our own, as named lists of specs, each with its published
values and the checks of its verdict. They are YAML files in data/; docs/adding-things.md shows one.

Importing this package loads only pydantic, YAML and the standard library, so that the service may
import it.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, create_model

from mptcore.presets.checks import QUANTITIES, Run
from mptcore.presets.results import (
    Comparison,
    Curve,
    Results,
    Verdict,
    equivalent,
    exceeds,
    no_more,
    verdict_of,
    within,
)
from mptcore.specs.base import Spec, SpecError
from mptcore.specs.parsing.problems import spec_error, validate_spec
from mptcore.specs.parsing.suggestions import meant
from mptcore.specs.union import ExperimentSpec

__all__ = ["PRESETS", "Comparison", "Curve", "Preset", "PresetError", "Results", "Verdict"]

Published = Mapping[str, tuple[float, ...]]
TESTS: Mapping[str, Callable[..., Comparison]] = {
    function.__name__: function for function in (within, equivalent, no_more, exceeds)
}
FOLDER = Path(__file__).with_name("data")
WITHOUT_FILES = ("ppca", "digits")
"""Sources of data that need no file."""


class PresetError(ValueError):
    """A mistake in a preset file, with the file, the field and what is allowed."""


@dataclass(frozen=True)
class Call:
    """A quantity or a test with its parameters. Published values among them are references, as
    `published.margin` or `published.lml[2]`."""

    function: Callable[..., Any]
    parameters: Mapping[str, Any]

    def arguments(self, published: Published) -> dict[str, Any]:
        """Return the keyword arguments of the function."""
        model = _parameters_of(self.function).model_validate(_resolved(self.parameters, published))
        return {name: getattr(model, name) for name in type(model).model_fields}


@dataclass(frozen=True)
class Check:
    """A figure that is measured from the results, and compared with published values."""

    figure: str
    measure: Call
    test: Call

    def compare(self, published: Published, runs: Sequence[Run]) -> Comparison:
        measured = self.measure.function(runs, **self.measure.arguments(published))
        compared: Comparison = self.test.function(
            self.figure, measured, **self.test.arguments(published)
        )
        return compared


@dataclass(frozen=True)
class Preset:
    """A named list of specs with its published result. `published` has the numbers that the verdict
    compares with, by name: those of the paper, those measured with the published program where the
    paper has only a plot, or the claimed values of a claim of our own. Names that begin with
    `expected_` give the true values that are assumed for the power of one-sided tests."""

    name: str
    title: str
    statement: str
    specs: tuple[ExperimentSpec, ...]
    published: Published
    checks: tuple[Check, ...]
    seconds: float | None = None
    """Time that the specs took one after the other when they were measured for the report in
    docs/report, on processors. None: they have not run there."""

    @property
    def needs(self) -> list[str]:
        """Names of the data sets and checkpoints that the specs read from a lab's folders."""
        return [*dict.fromkeys(name for spec in self.specs for name in _inputs_of(spec))]

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Return the verdict on the results of the specs, in their order."""
        if len(results) != len(self.specs):
            return Verdict("incomplete", (), f"{len(self.specs)} results, not {len(results)}")
        runs = [Run(result, spec.seeds) for result, spec in zip(results, self.specs, strict=True)]
        return verdict_of(check.compare(self.published, runs) for check in self.checks)


def _inputs_of(spec: ExperimentSpec) -> Iterator[str]:
    data = spec.data
    if not getattr(data, "lines", None):
        name = getattr(data, "subset", None) or getattr(data, "file", None) or data.source
        if name not in WITHOUT_FILES:
            yield name
    for model in (spec.model, getattr(spec, "baseline", None)):
        if checkpoint := getattr(model, "checkpoint", None):
            yield checkpoint


class Presets(Mapping[str, Preset]):
    """The presets in the files of a folder, by name, in the order of the files. They are read when
    the first one is used."""

    def __init__(self, folder: Path):
        self._folder = folder

    @cached_property
    def _presets(self) -> dict[str, Preset]:
        presets: dict[str, Preset] = {}
        for path in sorted(self._folder.glob("*.yaml")):
            for preset in read_presets(path):
                if preset.name in presets:
                    raise PresetError(f"{path.name}: /{preset.name}: another file has this preset")
                presets[preset.name] = preset
        return presets

    def __getitem__(self, name: str) -> Preset:
        return self._presets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._presets)

    def __len__(self) -> int:
        return len(self._presets)


class _Block(Spec):
    """A spec, and lists of changes of it (RFC 7386). There is a spec for each combination of one
    change of each list; the last list varies fastest."""

    base: dict[str, Any]
    vary: list[list[dict[str, Any]]] = Field(default_factory=list)


class _Fields(Spec):
    title: str
    statement: str
    seconds: Annotated[float, Field(gt=0)] | None = None
    published: dict[str, float | list[float]]
    specs: Annotated[list[_Block], Field(min_length=1)]
    checks: Annotated[list[dict[str, Any]], Field(min_length=1)]


class _CheckFields(Spec):
    figure: str
    measure: dict[str, dict[str, Any]]
    test: dict[str, dict[str, Any]]


class _RepeatedFields(Spec):
    """Checks that are repeated for each mapping, with its values in place of its names in
    braces."""

    each: list[dict[str, Any]]
    checks: Annotated[list[dict[str, Any]], Field(min_length=1)]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Read YAML safely, and refuse a key that a mapping has twice."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.flat: set[yaml.MappingNode] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Check the keys of a mapping before those of `<<` are added to them."""
        keys = [key.value for key, _ in node.value]
        if node not in self.flat and (twice := [key for key in keys if keys.count(key) > 1]):
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0]} is there twice", node.start_mark
            )
        self.flat.add(node)
        super().flatten_mapping(node)


def read_presets(path: Path) -> list[Preset]:
    """Return the presets in a YAML file: a mapping of their names. Raise PresetError."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise PresetError(f"{path.name}: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise PresetError(f"{path.name}: a mapping of the names of presets")
    try:
        return [_preset(str(name), value) for name, value in document.items()]
    except _Wrong as wrong:
        raise PresetError(f"{path.name}: {wrong}") from None


class _Wrong(Exception):
    """A wrong value at a JSON pointer."""

    def __init__(self, pointer: str, detail: str):
        super().__init__(f"{pointer}: {detail}")


def _preset(name: str, value: object) -> Preset:
    pointer = f"/{name}"
    fields = _valid(_Fields, value, pointer)
    published = {
        key: tuple(map(float, values if isinstance(values, list) else [values]))
        for key, values in fields.published.items()
    }
    specs = tuple(_specs(fields.specs, f"{pointer}/specs"))
    unused = {(key, item) for key, values in published.items() for item in range(len(values))}
    unused_parts = set(range(1, len(specs) + 1))
    checks = []
    for place, entry in _repeated(fields.checks, f"{pointer}/checks"):
        check, references, parts = _check(entry, place, published)
        if wrong := [part for part in parts if part > len(specs)]:
            raise _Wrong(f"{place}/measure", f"part {wrong[0]}: there are {len(specs)} specs")
        checks.append(check)
        unused -= references
        unused_parts -= parts
    for key, item in sorted(unused):
        place = f"{pointer}/published/{key}"
        which = f"[{item}]" if len(published[key]) > 1 else ""
        raise _Wrong(place, f"no check uses published.{key}{which}: use it in a check or remove it")
    if unused_parts:
        raise _Wrong(f"{pointer}/checks", f"no check uses part {min(unused_parts)} of the specs")
    return Preset(
        name, fields.title, fields.statement, specs, published, tuple(checks), fields.seconds
    )


Model = TypeVar("Model", bound=BaseModel)


def _valid(model: type[Model], value: object, pointer: str) -> Model:
    """Return a value as a model. Raise _Wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _of(spec_error(error.errors(include_url=False), value, model), pointer) from None


def _of(error: SpecError, pointer: str) -> _Wrong:
    first, *others = error.within(pointer).problems
    details = [first.detail, *(f"{other.pointer}: {other.detail}" for other in others)]
    return _Wrong(first.pointer, "; ".join(details))


def _specs(blocks: Sequence[_Block], pointer: str) -> Iterator[ExperimentSpec]:
    for i, block in enumerate(blocks):
        for changes in product(*block.vary):
            value: Any = block.base
            for change in changes:
                value = _merged(value, change)
            match value.get("seeds"):
                case {"first": int(first), "count": int(count), **more} if not more:
                    value = {**value, "seeds": list(range(first, first + count))}
            try:
                yield validate_spec(value)
            except SpecError as error:
                raise _of(error, f"{pointer}/{i}") from None


def _merged(value: Any, change: Any) -> Any:
    """Return a value with a merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    merged = dict(value) if isinstance(value, dict) else {}
    for key, part in change.items():
        if part is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), part)
    return merged


PLACEHOLDER = re.compile(r"\{(\w+)\}")


def _repeated(entries: Sequence[Any], pointer: str) -> Iterator[tuple[str, Any]]:
    """Yield checks and their JSON pointers, those with `each` once for each of its mappings."""
    for i, entry in enumerate(entries):
        place = f"{pointer}/{i}"
        if "each" not in entry:
            yield place, entry
            continue
        fields = _valid(_RepeatedFields, entry, place)
        for j, values in enumerate(fields.each):
            unused = dict(values)
            for k, check in enumerate(fields.checks):
                of_check = f"{place}/checks/{k}"
                yield of_check, _with_texts(check, of_check, partial(_filled, values, unused))
            for name in unused:
                raise _Wrong(f"{place}/each/{j}/{name}", f"no check uses {{{name}}}")


def _with_texts(value: Any, pointer: str, change: Callable[[str, str], Any]) -> Any:
    """Return a value whose texts are changed by a function of their JSON pointers and texts."""
    if isinstance(value, dict):
        return {k: _with_texts(part, f"{pointer}/{k}", change) for k, part in value.items()}
    if isinstance(value, list):
        return [_with_texts(part, f"{pointer}/{i}", change) for i, part in enumerate(value)]
    return change(pointer, value) if isinstance(value, str) else value


def _filled(values: Mapping[str, Any], unused: dict[str, Any], pointer: str, text: str) -> Any:
    """Return a text with `values` in place of their names in braces. Remove them from `unused`."""
    names = PLACEHOLDER.findall(text)
    for name in names:
        if name not in values:
            known = ", ".join(values)
            near = meant(name, values)
            raise _Wrong(pointer, f"{{{name}}} is no name of `each`: {near}there are {known}")
        unused.pop(name, None)
    if names and text == f"{{{names[0]}}}":
        return values[names[0]]
    return PLACEHOLDER.sub(lambda found: str(values[found[1]]), text)


def _check(
    entry: object, pointer: str, published: Published
) -> tuple[Check, set[tuple[str, int]], set[int]]:
    """Return a check, the published values that it uses and the parts that it measures."""
    fields = _valid(_CheckFields, entry, pointer)
    measure, measured = _call(fields.measure, QUANTITIES, f"{pointer}/measure", published)
    test, tested = _call(fields.test, TESTS, f"{pointer}/test", published)
    parts = set(_parts(_parameters_of(measure.function)(**measure.arguments(published))))
    return Check(fields.figure, measure, test), measured | tested, parts


def _call(
    choice: Mapping[str, Any],
    functions: Mapping[str, Callable[..., Any]],
    pointer: str,
    published: Published,
) -> tuple[Call, set[tuple[str, int]]]:
    """Return the function that a mapping names, with its parameters, and the published values among
    them."""
    if len(choice) != 1:
        raise _Wrong(pointer, f"one of {', '.join(functions)}, with its parameters")
    ((name, parameters),) = choice.items()
    place = f"{pointer}/{name}"
    if name not in functions:
        raise _Wrong(place, f"{meant(name, functions)}one of {', '.join(functions)}")
    used: set[tuple[str, int]] = set()
    resolved = _resolved(parameters, published, place, used)
    _valid(_parameters_of(functions[name]), resolved, place)
    return Call(functions[name], parameters), used


def _parts(value: Any) -> Iterator[int]:
    """Yield the numbers of the specs that parameters name."""
    if isinstance(value, list):
        for item in value:
            yield from _parts(item)
    for key, item in value if isinstance(value, BaseModel) else ():
        if key in ("part", "parts"):
            yield from item if isinstance(item, list) else [item]
        else:
            yield from _parts(item)


REFERENCE = re.compile(r"published\.([\w-]+)(?:\[(\d+)\])?")


def _resolved(
    parameters: Any,
    published: Published,
    pointer: str = "",
    used: set[tuple[str, int]] | None = None,
) -> Any:
    """Return parameters with published values in place of references to them. Add the name and the
    position of each to `used`."""

    def value_of(place: str, text: str) -> Any:
        if not text.startswith("published."):
            return text
        found = REFERENCE.fullmatch(text)
        if found is None or found[1] not in published:
            name, known = text.removeprefix("published."), ", ".join(published)
            raise _Wrong(
                place, f"no published value {name}: {meant(name, published)}one of {known}"
            )
        values = published[found[1]]
        count, item = len(values), int(found[2] or 0)
        if (found[2] is None) != (count == 1) or item >= count:
            allowed = f"published.{found[1]}[0] to [{count - 1}]" if count > 1 else "no position"
            raise _Wrong(place, f"published.{found[1]} has {count} values: {allowed}")
        if used is not None:
            used.add((found[1], item))
        return values[item]

    return _with_texts(parameters, pointer, value_of)


@cache
def _parameters_of(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the model of a function's keyword arguments."""
    fields: dict[str, Any] = {
        name: (parameter.annotation, ... if parameter.default is parameter.empty else
               parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }  # fmt: skip
    return create_model(function.__name__, __base__=Spec, **fields)


PRESETS: Mapping[str, Preset] = Presets(FOLDER)
