"""Find the files that a spec reads, and report those that are missing.

The service sees the folders MPT_DATA_DIR and MPT_MODELS_DIR where its settings name them and they
are there; else it does not know, and lets a spec through.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mptcore.specs import ExperimentSpec, GlueText, PlainText, Problem
from mptcore.specs.data.text import GLUE_SPLITS
from mptcore.specs.parsing.suggestions import meant
from service.settings import Settings

TEXT_FORMATS = ("txt", "jsonl", "parquet")
IMAGES = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
"""Folder of each image data set."""
RAW = "raw/train-images-idx3-ubyte"
GLUE_HUB = "nyu-mll/glue"
MAX_NAMED = 20


class Inputs:
    """Files in the lab's folders that specs read. Each folder is listed once for all specs."""

    def __init__(self, settings: Settings):
        self.data = _folder(settings.data_dir)
        self.models = _folder(settings.models_dir)
        self._names: dict[Path, list[str]] = {}
        self._files: dict[Path, list[Path]] = {}

    def files(self, spec: ExperimentSpec) -> list[Path] | None:
        """Return the files that a spec reads, or None if they are not visible here."""
        found: list[Path] = []
        for part in (self._data_files(spec.data), *map(self._checkpoint_files, _models(spec))):
            if part is None:
                return None
            found += part
        return found

    def needs_hub(self, spec: ExperimentSpec) -> bool:
        """Return whether the spec reads a model or data set that is not in the lab's folders."""
        names = [name for model in _models(spec) if (name := getattr(model, "checkpoint", None))]
        if any(self.models is None or not (self.models / name).is_dir() for name in names):
            return True
        if isinstance(spec.data, GlueText):
            return self._glue_file(spec.data) is None
        if spec.data.source in IMAGES:
            return self.data is None or not _has_images(self.data, spec.data.source)
        return False

    def problems(self, spec: ExperimentSpec) -> Iterator[Problem]:
        """Yield what is known to be missing of a spec's inputs."""
        if self.data is not None:
            yield from self._data_problems(spec.data, self.data)
        if self.models is not None and _is_offline():
            for part in ("model", "baseline"):
                named = getattr(getattr(spec, part, None), "checkpoint", None)
                if named and not (self.models / named).is_dir() and not _in_cache(named):
                    there = self._listed(self.models, files=False)
                    yield Problem(f"/{part}/checkpoint", _not_there("checkpoint", named, there))

    def _data_problems(self, data: Any, folder: Path) -> Iterator[Problem]:
        match data:
            case PlainText(file=str(name)) if not (folder / "text" / name).is_file():
                there = self._listed(folder / "text", files=True)
                yield Problem("/data/file", _not_there("text", name, there))
            case GlueText() if self._glue_file(data) is None and _is_offline():
                wanted, there = f"{data.subset}/{data.split}", _glue_in(folder)
                if not _in_cache(GLUE_HUB):
                    yield Problem("/data/subset", _not_there("GLUE subset", wanted, there))
            case _ if data.source in IMAGES and _lacks_images(folder, data.source):
                there = [name for name in IMAGES if not _lacks_images(folder, name)]
                yield Problem("/data/source", _not_there("data set", data.source, there))

    def _data_files(self, data: Any) -> list[Path] | None:
        match data:
            case GlueText():
                local = self._glue_file(data)
                return None if local is None else [local]
            case PlainText(file=str(name)):
                return None if self.data is None else [self.data / "text" / name]
            case _ if data.source in IMAGES:
                return None if self.data is None else self._below(self.data / IMAGES[data.source])
        return []

    def _checkpoint_files(self, model: Any) -> list[Path] | None:
        name = getattr(model, "checkpoint", None)
        if name is None:
            return []
        if self.models is None or not (self.models / name).is_dir():
            return None
        return self._below(self.models / name)

    def _glue_file(self, data: GlueText) -> Path | None:
        if self.data is None:
            return None
        places = (self.data / "glue" / data.subset / f"{data.split}.{f}" for f in TEXT_FORMATS)
        return next((path for path in places if path.is_file()), None)

    def _below(self, folder: Path) -> list[Path]:
        if folder not in self._files:
            self._files[folder] = [path for path in folder.rglob("*") if path.is_file()]
        return self._files[folder]

    def _listed(self, folder: Path, *, files: bool) -> list[str]:
        """Return the names of the files or folders in a folder."""
        if folder not in self._names:
            among = sorted(folder.iterdir()) if folder.is_dir() else []
            self._names[folder] = [one.name for one in among if one.is_file() == files]
        return self._names[folder]


def _models(spec: ExperimentSpec) -> list[Any]:
    return [spec.model, getattr(spec, "baseline", None)]


def _lacks_images(folder: Path, source: str) -> bool:
    """Return whether the images are missing and will not be downloaded."""
    return not _has_images(folder, source) and os.environ.get("MPT_ALLOW_DOWNLOAD") != "1"


def _has_images(folder: Path, source: str) -> bool:
    file = folder / IMAGES[source] / RAW
    return file.is_file() or file.with_name(f"{file.name}.gz").is_file()


def _glue_in(folder: Path) -> list[str]:
    return [
        f"{subset}/{path.stem}"
        for subset in GLUE_SPLITS
        for path in sorted((folder / "glue" / subset).glob("*.*"))
    ]


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
