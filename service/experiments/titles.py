"""Titles of experiments and sweeps: their names or, without one, what distinguishes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from service.accounts.users import Caller
from service.db.visibility import readable, reader
from service.experiments.models import Experiment
from service.sweeps.models import Sweep

MAX_SPEC_BYTES = 8192
"""Maximum bytes of a spec that a list reads to name an experiment. A page has up to 500."""
MAX_CHARACTERS = 24
"""Maximum number of characters of a sweep's name, and of a value, in a title."""


def specs_of(session: Session, experiments: Sequence[Experiment]) -> dict[str, dict[str, Any]]:
    """Return the specs of experiments by id: those that are loaded, and small ones."""
    loaded = [one for one in experiments if "spec" not in inspect(one).unloaded]
    specs = {one.id: one.spec for one in loaded}
    return specs | small_specs(session, [one.id for one in experiments if one.id not in specs])


def small_specs(session: Session, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the specs of experiments by id, without large ones."""
    if not ids:
        return {}
    is_small = Experiment.spec_bytes <= MAX_SPEC_BYTES
    query = select(Experiment.id, Experiment.spec).where(Experiment.id.in_(ids), is_small)
    return {row.id: row.spec for row in session.execute(query)}


def titles_of(session: Session, experiments: Sequence[Experiment], user: Caller) -> dict[str, str]:
    """Return the titles of experiments: their names or, without one, the swept fields of a sweep's
    point or the spec in short. Large specs are not read: the title is then the family."""
    unnamed = [one for one in experiments if one.name is None]
    titles = {one.id: one.name for one in experiments if one.name is not None}
    if not unnamed:
        return titles
    sweeps: dict[str, tuple[str | None, list[str]]] = {}
    if ids := {one.sweep_id for one in unnamed if one.sweep_id is not None}:
        query = select(Sweep.id, Sweep.name, Sweep.fields).where(Sweep.id.in_(ids), readable(Sweep))
        rows = session.execute(query, reader(user.id, user.is_admin))
        sweeps = {id_: (name, fields) for id_, name, fields in rows}
    specs = specs_of(session, unnamed)
    for one in unnamed:
        spec = specs.get(one.id)
        if spec is None:
            titles[one.id] = one.family
        elif one.sweep_id in sweeps:
            titles[one.id] = point_title(*sweeps[one.sweep_id], spec)
        else:
            titles[one.id] = short_spec(spec)
    return titles


def point_title(name: str | None, fields: Sequence[str], spec: Mapping[str, Any]) -> str:
    """Return the title of a sweep's point, such as "mine: latent_dim 3", without the fields that
    its spec leaves out."""
    values = ((path.split(".")[-1], value_at(spec, path)) for path in fields)
    texts = [f"{field} {_cut(text_of(value))}" for field, value in values if value is not None]
    return f"{_cut(name or 'sweep')}: {', '.join(texts)}"


def short_spec(spec: Mapping[str, Any]) -> str:
    """Return the family, its main size, and the source of the data: "ppca · K 3 · digits"."""
    model, data = spec["model"], spec["data"]
    latent_dim, checkpoint = model.get("latent_dim"), model.get("checkpoint")
    size = f"K {latent_dim}" if latent_dim is not None else checkpoint
    names = (data.get(name) for name in ("subset", "file", "source"))
    source = "drawn" if data.get("source") == "ppca" else next(filter(None, names), None)
    shape = f"{data['n']} × {data['dim']}" if data.get("n") and data.get("dim") else None
    return " · ".join(
        filter(None, [model["family"], size, " ".join(filter(None, [source, shape]))])
    )


def sweep_title(sweep: Sweep) -> str:
    """Return the name of a sweep or, without one, its fields and the end of its id."""
    if sweep.name is not None:
        return sweep.name
    fields = ", ".join(path.split(".")[-1] for path in sweep.fields)
    return f"sweep of {fields} · {sweep.id[-6:]}"


def value_at(spec: Mapping[str, Any], path: str) -> Any:
    """Return the value of a field in a spec, or None if it has no such field."""
    value: Any = spec
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def text_of(value: Any) -> str:
    """Return a value of a spec as text: a whole number without decimals."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _cut(text: str) -> str:
    return f"{text[:MAX_CHARACTERS]}…" if len(text) > MAX_CHARACTERS else text
