"""Additions to FastAPI's OpenAPI document: the media type of problems, examples, links from
operations that return an id to operations that take it, and a form that generators of clients
understand."""

from collections.abc import Iterator
from typing import Any

from mptcore.specs import OutsideExperiment
from service.datasets.sizes import SIZES
from service.web.errors import PROBLEM

Document = dict[str, Any]

FOLLOWING = {
    "experiment_id": {
        "status": "get_experiment_v1_experiments__experiment_id__get",
        "curves": "get_curves_v1_experiments__experiment_id__curves_get",
        "metrics": "get_metrics_v1_experiments__experiment_id__metrics_get",
        "artifacts": "list_artifacts_v1_experiments__experiment_id__artifacts_get",
        "events": "get_events_v1_experiments__experiment_id__events_get",
        "logs": "get_logs_v1_experiments__experiment_id__logs_get",
        "cancel": "cancel_v1_experiments__experiment_id__cancel_post",
    },
    "sweep_id": {
        "status": "get_sweep_v1_sweeps__sweep_id__get",
        "table": "get_table_v1_sweeps__sweep_id__table_get",
        "points": "add_points_v1_sweeps__sweep_id__points_post",
        "events": "get_sweep_events_v1_sweeps__sweep_id__events_get",
        "cancel": "cancel_sweep_v1_sweeps__sweep_id__cancel_post",
        "retry": "retry_sweep_v1_sweeps__sweep_id__retry_post",
    },
    "dataset_id": {"upload": "get_dataset_v1_datasets__dataset_id__get"},
}
"""Links from answers to the operations that use their id: for each kind of id, the operation ids
by the name of the link."""
MAKES = {
    ("/v1/experiments", "post", "200"): "experiment_id",
    ("/v1/experiments", "post", "202"): "experiment_id",
    ("/v1/experiments/{experiment_id}:retry", "post", "202"): "experiment_id",
    ("/v1/sweeps", "post", "202"): "sweep_id",
    ("/v1/datasets", "post", "201"): "dataset_id",
}

_SPEC = {
    "model": {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"},
    "data": {"source": "digits"},
    "evaluate": {"masks": {"schedule": "fixed", "size": 3, "per_size": 20}},
}
_ID = "0199f0c2a7d37c1e8f0e5b6a4d2c1b0a"
EXAMPLES: dict[str, list[Document]] = {
    "Submission": [{"spec": _SPEC, "name": "digits", "tags": ["first"]}],
    "Changes": [{"name": "digits, again", "pinned": True}],
    "ExperimentsWanted": [{"ids": [_ID]}],
    "CurvesWanted": [{"ids": [_ID], "series": ["score"], "labels": {"seed": [4, 44]}}],
    "Batch": [{"experiments": [{"spec": _SPEC}, {"spec": _SPEC | {"seeds": [4]}, "after": [_ID]}]}],
    "SweepSubmission": [
        {"spec": _SPEC, "grid": {"model.latent_dim": [1, 2, 3], "seeds": [[4], [44]]},
         "name": "dimensions", "concurrency": 2},
        {"spec": _SPEC,
         "random": {"n": 20, "seed": 4,
                    "fields": {"model.latent_dim": {"low": 1, "high": 32, "scale": "log"},
                               "seeds": [[4], [44]]}}},
    ],
    "MorePoints": [{"list": [{"model.latent_dim": 4}, {"model.latent_dim": 5, "seeds": [44]}]}],
    "SweepChanges": [{"priority": 5, "concurrency": None}],
    "DatasetChanges": [{"visibility": "lab"}],
    "NewUser": [{"name": "ann", "role": "member"}],
    "UserChanges": [{"role": "viewer"}],
    "NewProject": [{"name": "vision", "shares": 3, "members": ["ann", "bob"]}],
    "ProjectChanges": [{"add_members": ["carol"], "max_running": 4}],
    "NewKey": [{"name": "laptop", "scopes": ["read"], "lasts_days": 90}],
    "NewOwnKey": [{"name": "laptop", "lasts_days": 30}],
    "NewDrain": [
        {"host": "gpu3", "hand_back_after_s": 1800, "lasts_s": 7200},
        {"host": "gpu3", "starts_in_s": 432_000, "lasts_s": 446_400},
    ],
    "SignInWith": [{"code": "2bJ0l5f5bqXw0f0c9Yb0rA"}],
    "Code": [{"code": "2bJ0l5f5bqXw0f0c9Yb0rA"}],
    "SignInRound": [{"fresh": True}],
    "Returned": [{"state": "2bJ0l5f5bqXw0f0c9Yb0rA", "code": "Vb0cQwq1", "iss": "https://id.example.org"}],
    "NewWebhook": [{"url": "https://example.org/ended", "statuses": ["failed"]}],
    "MetricList": [
        {"items": [{"name": "lml", "labels": {"seed": 4}, "value": -60.34, "std_err": None,
                    "reason": "exact"}]}
    ],
    "CurvesOut": [
        {"experiment_id": _ID, "status": "running", "last_seq": 7, "partial": True,
         "total_points": 2, "sampled": False,
         "series": [{"name": "score", "labels": {"seed": 4}, "total_points": 2, "sampled": False,
                     "x": [1, 2], "value": [-1.2, -1.3], "std_err": [0.01, 0.01], "n": [100, 100],
                     "reasons": None}]}
    ],
    "ProblemDocument": [
        {"title": "Unprocessable Content", "status": 422, "reason": "invalid_request",
         "detail": "/spec/seeds: a seed may be listed once only",
         "errors": [{"pointer": "/spec/seeds", "detail": "a seed may be listed once only"}],
         "error_count": 1,
         "request_id": "5f0c"}
    ],
}  # fmt: skip


def complete(document: Document) -> Document:
    """Complete the document in place and return it."""
    schemas = document["components"]["schemas"]
    schemas.pop(OutsideExperiment.__name__, None)  # FastAPI lists it, and nothing refers to it
    for name, schema in schemas.items():
        if name in EXAMPLES:
            schema["examples"] = EXAMPLES[name]
        if name.startswith("UploadData") and not name.endswith("-Output"):
            schema["required"] = [one for one in schema["required"] if one not in SIZES]
        _generate(name, schema)
    for operation in operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "header":
                parameter["schema"] = {"type": "string"}
        for status, response in operation["responses"].items():
            for media_type, content in response.get("content", {}).items():
                text = media_type.startswith("text/")
                content.setdefault("schema", TEXT if text else BINARY)
            if status[0] in "45":
                content = response["content"]
                content[PROBLEM] = content.pop("application/json")
    for (path, method, status), parameter in MAKES.items():
        document["paths"][path][method]["responses"][status]["links"] = _links(parameter)
    return document


TEXT = {"type": "string"}
BINARY = {"type": "string", "format": "binary"}
"""The schemas of answers that are not JSON."""
OBJECT_DEFAULT = "x-default"
"""The key of a default that is an object: generators of clients refuse a schema with one."""


def _generate(name: str, schema: Document) -> None:
    """Put a schema in a form that generators of clients understand: titles are unique, because they
    become class names; no default is an object; one value of several kinds is an enum."""
    if "-" in name:
        schema["title"] = name.replace("-", "")
    for about in schema.get("properties", {}).values():
        if isinstance(about.get("default"), dict):
            about[OBJECT_DEFAULT] = about.pop("default")
        for member in about.get("anyOf", ()):
            if "const" in member:
                member["enum"] = [member.pop("const")]


def operations(document: Document) -> Iterator[Document]:
    for methods in document["paths"].values():
        yield from methods.values()


def _links(parameter: str) -> Document:
    return {
        name: {"operationId": operation, "parameters": {parameter: "$response.body#/id"}}
        for name, operation in FOLLOWING[parameter].items()
    }
