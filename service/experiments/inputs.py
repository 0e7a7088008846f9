"""Find the files that a spec reads, and report those that are missing or cannot be used.

If the settings name MPT_DATA_DIR and MPT_MODELS_DIR and these folders exist, the service checks
them. Otherwise it accepts a spec without this check: workers on other machines may have the files.
The service of `mpt serve` has all its workers on its machine, so it also knows which checkpoints
are missing without MPT_MODELS_DIR, and whether runs reach the hub.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from mptcore.specs import ExperimentSpec, GlueText, MaskedLmModel, Problem
from mptcore.specs.base import Source
from mptcore.specs.parsing.suggestions import meant
from mptcore.specs.text import GLUE_HUB
from mptcore.specs.vectors import ImageData
from service.datasets.hub import hub_answers, hub_url
from service.experiments.checkpoints import checkpoint_problem
from service.settings import Settings

MAX_NAMED = 20
OFFLINE = "the hub is disabled (HF_HUB_OFFLINE)"
CURE = "put its folder into MPT_MODELS_DIR"
DATA_CURE = "set it to a folder with these data, and start mpt serve again"
LOCAL_CURE = f"{CURE}, or give mpt the path of a folder of yours, such as ./my-bert"


class Inputs:
    """Files in the lab's folders that specs read. Each folder is listed once for all specs."""

    def __init__(self, settings: Settings):
        self.data = _folder(settings.data_dir)
        self.models = _folder(settings.models_dir)
        self._taken = settings.store / "models"
        self._is_local = settings.embedded is not None
        self._files: dict[Path, list[Path]] = {}
        self._checkpoints: dict[MaskedLmModel, str | None] = {}

    def files(self, spec: ExperimentSpec) -> list[Path] | None:
        """Return the files that a spec reads, or None if they are not visible here."""
        files = []
        path = spec.data.local(self.data or Path())
        if path is not None:
            if self.data is None or not spec.data.is_local(self.data):
                return None
            files += self._below(path)
        for name in _checkpoints(spec):
            folder = self._checkpoint(name)
            if folder is None:
                return None
            files += self._below(folder)
        return files

    def needs_hub(self, spec: ExperimentSpec) -> bool:
        """Return whether the spec reads a model or data set that is not in the lab's folders."""
        if any(self._checkpoint(name) is None for name in _checkpoints(spec)):
            return True
        return spec.data.is_remote and (self.data is None or not spec.data.is_local(self.data))

    def problems(self, spec: ExperimentSpec) -> Iterator[Problem]:
        """Yield the inputs of a spec that are known to be missing."""
        data, folder = spec.data, self.data
        if folder is None and self._is_local and _needs_folder(data):
            detail = f"{data.local_name} is read from the folder MPT_DATA_DIR, which is not set"
            yield Problem(f"/data/{data.named_by}", f"{detail}: {DATA_CURE}")
        if folder is not None and _is_missing(data, folder):
            names = data.local_names(folder)
            detail = _not_there(data.noun, data.local_name, names)
            if isinstance(data, ImageData):
                place = f"put its folder {data.class_name} into {folder} (MPT_DATA_DIR)"
                detail += f"; {place}, or set MPT_ALLOW_DOWNLOAD=1 to download it"
            yield Problem(f"/data/{data.named_by}", detail)
        for part in ("model", "baseline"):
            model = getattr(spec, part)
            if not isinstance(model, MaskedLmModel):
                continue
            named = model.checkpoint
            if (folder := self._checkpoint(named)) is not None:
                if (problem := self._checkpoint_problem(folder, model)) is not None:
                    yield Problem(f"/{part}/checkpoint", f"the checkpoint {named} {problem}")
                continue
            if _in_cache(named):
                continue
            if (reason := self._without_hub()) is not None:
                cure = LOCAL_CURE if self._is_local else CURE
                detail = _not_there("checkpoint", named, self._known_checkpoints())
                yield Problem(f"/{part}/checkpoint", f"{detail}; {reason}: {cure}")

    def _checkpoint_problem(self, folder: Path, model: MaskedLmModel) -> str | None:
        if model not in self._checkpoints:
            self._checkpoints[model] = checkpoint_problem(folder, model)
        return self._checkpoints[model]

    def _without_hub(self) -> str | None:
        """Return why a checkpoint of the hub cannot be used, or None if a run may load it."""
        if _is_offline():
            return OFFLINE if self._is_local or self.models is not None else None
        if self._is_local and not hub_answers(url := hub_url()):
            shown = re.sub(r"//[^/@]*@", "//", url)  # a mirror's may have a password
            return f"the hub, {shown}, cannot be reached from here"
        return None

    def _known_checkpoints(self) -> list[str]:
        """Return the names of the checkpoints in MPT_MODELS_DIR and in the store."""
        folders = (root for root in (self.models, self._taken) if root and root.is_dir())
        found = {one.name for folder in folders for one in folder.iterdir() if one.is_dir()}
        return sorted(name for name in found if not name.startswith("."))

    def usable_checkpoints(self) -> list[str]:
        """Return the names of the known checkpoints with all files that scores of texts need."""
        usable = []
        for name in self._known_checkpoints():
            with suppress(ValidationError):  # a folder whose name no spec can give
                model = MaskedLmModel(family="masked_lm", checkpoint=name)
                folder = self._checkpoint(name)
                if folder is not None and self._checkpoint_problem(folder, model) is None:
                    usable.append(name)
        return usable

    def _checkpoint(self, name: str) -> Path | None:
        """Return the folder of a checkpoint in MPT_MODELS_DIR, or of one that was copied to the
        store."""
        roots = (root for root in (self.models, self._taken) if root is not None)
        return next((root / name for root in roots if (root / name).is_dir()), None)

    def _below(self, path: Path) -> list[Path]:
        if path not in self._files:
            files = [one for one in path.rglob("*") if one.is_file()]
            self._files[path] = [path] if path.is_file() else files
        return self._files[path]


def _checkpoints(spec: ExperimentSpec) -> list[str]:
    models = (spec.model, spec.baseline)
    return [name for model in models if (name := getattr(model, "checkpoint", None))]


def _is_missing(data: Source, folder: Path) -> bool:
    """Return whether the source reads files that are missing and will not be downloaded."""
    if data.local(folder) is None or data.is_local(folder):
        return False
    if isinstance(data, GlueText):
        return _is_offline() and not _in_cache(GLUE_HUB)
    return not data.is_remote or os.environ.get("MPT_ALLOW_DOWNLOAD") != "1"


def _needs_folder(data: Source) -> bool:
    """Return whether the source reads files that are only in MPT_DATA_DIR."""
    return data.local(Path()) is not None and not isinstance(data, GlueText)


def _folder(path: Path | None) -> Path | None:
    return path if path is not None and path.is_dir() else None


def _is_offline() -> bool:
    """Return whether the hub is disabled, so that only local files exist."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _in_cache(name: str) -> bool:
    """Return whether the hub's cache contains this model or data set."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    flat = name.replace("/", "--")
    return any((hub / f"{kind}--{flat}").is_dir() for kind in ("models", "datasets"))


def _not_there(what: str, name: str, there: Sequence[str]) -> str:
    """Return a message with the existing names, the most similar ones first."""
    near = meant(name, there).rstrip()
    return f"there is no {what} {name}{f': {near}' if near else ''}; {_named(there)}"


def _named(there: Sequence[str]) -> str:
    if not there:
        return "there is none at all"
    more = f" and {len(there) - MAX_NAMED} more" if len(there) > MAX_NAMED else ""
    return f"there are {', '.join(there[:MAX_NAMED])}{more}"
