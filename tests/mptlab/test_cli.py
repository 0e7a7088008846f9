"""The command line, as a user types it: a few commands as processes, the others here."""

import json
import re
from pathlib import Path

import pytest

from mptlab import Client, NoAnswer, NotSucceeded, Refused, serve
from mptlab.cli import _status_of
from service.vocabulary import Role, Scope
from tests.support.commands import mpt, mpt_here
from tests.support.ppca_spec import ppca_spec


def test_submit_wait_curves(environment: dict[str, str], tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(ppca_spec()))
    code, experiment_id, _ = mpt(environment, "submit", str(spec), "--name", "first")
    assert code == 0
    code, metrics, _ = mpt(environment, "wait", experiment_id.strip())
    assert code == 0
    names = [line.split()[0] for line in metrics.splitlines()]
    assert names == ["LML", "MPT", "lml", "mpt", "difference"]
    file = tmp_path / "curves.json"
    code, _, _ = mpt(environment, "curves", experiment_id.strip(), "--output", str(file))
    assert code == 0
    (series,) = json.loads(file.read_text())
    assert series["x"] == [1, 2, 3, 4, 5, 6]


def test_the_queue_and_the_own_share_are_printed(
    environment: dict[str, str], client: Client
) -> None:
    spec = ppca_spec(compute__device="cuda")
    waiting = client.submit(spec)["id"]
    code, output, _ = mpt_here(environment, "queue")
    client.cancel(waiting)
    assert code == 0
    names, figures, limits, *items = output.splitlines()
    assert names.split()[:2] == ["RawShares", "NormShares"]
    assert figures.split()[:2] == ["1", "1"]
    assert re.match(r"running \d+, submitted [1-9]\d* of ", limits)  # other tests' too
    assert f"{waiting}  no GPU worker is registered; starts: unknown" in items


def test_submit_from_standard_input_and_wait(environment: dict[str, str]) -> None:
    code, output, _ = mpt(environment, "submit", "-", "--wait", text=json.dumps(ppca_spec()))
    assert code == 0
    assert "mpt" in output


def test_a_refusal_is_printed_on_a_single_line(environment: dict[str, str], tmp_path: Path) -> None:
    text = json.dumps(ppca_spec(model__latent_dim=9))
    code, output, error = mpt(environment, "submit", "-", text=text)
    assert (code, output) == (1, "")
    assert error.startswith("mpt: /spec/model/latent_dim: at most 5, fewer than the data's 6")
    code, _, error = mpt_here(environment, "wait", "nothing")
    assert (code, error) == (1, "mpt: you have no experiment nothing\n")
    lost = {**environment, "MPT_STORE": str(tmp_path)}
    code, _, error = mpt_here(lost, "wait", "nothing")
    assert code == 1
    assert "set MPT_API_KEY" in error
    url = f"http://127.0.0.1:{serve.free_port()}"
    down = {**environment, "MPT_URL": url, "MPT_RETRY_S": "0"}
    code, _, error = mpt_here(down, "wait", "nothing")
    assert code == 4
    assert error.startswith(f"mpt: {url} does not answer (")
    assert "`mpt serve` starts" in error
    assert error.count("\n") == 1


def test_the_python_client(client: Client) -> None:
    spec = ppca_spec(seeds=[1, 2])
    assert client.validate(spec)["masks"] == 48
    submitted = client.submit(spec, name="from Python", tags=["t"])
    seen: list[str] = []
    ended = client.wait(submitted["id"], timeout_s=60, on_change=lambda e: seen.append(e["status"]))
    assert ended["status"] == seen[-1] == "succeeded"
    assert len(client.curves(submitted["id"])) == 2
    (one,) = client.curves(submitted["id"], "score", seed=2)
    assert one["labels"] == {"seed": 2}
    assert submitted["id"] in [e["id"] for e in client.experiments(limit=1)]
    with pytest.raises(Refused, match="is succeeded"):
        client.cancel(submitted["id"])
    with pytest.raises(Refused) as refused:
        client.submit({**spec, "seeds": []})
    assert refused.value.document["errors"][0]["pointer"] == "/spec/seeds"


def test_an_admin_adds_a_user_and_revokes_a_key(environment: dict[str, str]) -> None:
    code, key, _ = mpt_here(environment, "admin", "user", "add", "ann")
    assert code == 0
    ann = {**environment, "MPT_API_KEY": key.strip()}
    arguments = ("--label", "\x1b[31mnight", "--scope", "read", "--days", "2")
    code, second, error = mpt_here(environment, "admin", "key", "add", "ann", *arguments)
    assert (code, second.startswith("mpt_")) == (0, True), error
    code, shown, _ = mpt_here(ann, "admin", "key", "list", "ann")
    assert code == 0
    assert [line.split()[2:4] for line in shown.splitlines() if "night" in line] == [
        ["read", shown.split("night")[1].split()[1]]
    ]
    assert "\x1b" not in shown
    spec = json.dumps(ppca_spec())
    reading = {**environment, "MPT_API_KEY": second.strip()}
    code, _, error = mpt_here(reading, "submit", "-", text=spec)
    assert (code, error.count("\n")) == (1, 1)
    assert error.startswith("mpt: this API key lacks the scope submit: ask an admin")
    code, _, error = mpt_here(ann, "admin", "user", "list")
    assert code == 1
    assert "which a member cannot have" in error
    code, experiment_id, _ = mpt_here(ann, "submit", "-", "--share", text=spec)
    assert code == 0
    key_id = key.split("_")[1]
    assert mpt_here(environment, "admin", "key", "revoke", "ann", key_id)[0] == 0
    code, _, error = mpt_here(ann, "wait", experiment_id.strip())
    assert code == 1
    assert "the key from MPT_API_KEY: this API key was revoked: ask an admin for another" in error
    code, shown, _ = mpt_here(environment, "admin", "audit", "--object", key_id)
    assert code == 0
    assert [line.split()[2] for line in shown.splitlines() if "key." in line] == [
        line.split()[2] for line in shown.splitlines() if " local " in line
    ]
    assert "key.revoked" in shown


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused({"detail": "no"}, 404), 1),
        (Refused({"detail": "away"}, 503), 4),
        (NoAnswer("http://lab", "refused"), 4),
        (TimeoutError("late"), 4),
        (NotSucceeded({"id": "a", "status": "cancelled"}), 3),
        (PermissionError(13, "denied", "/x"), 1),
        (ValueError("no spec"), 1),
        (AssertionError("a defect"), None),
    ],
)
def test_exit_statuses(error: Exception, status: int | None) -> None:
    assert _status_of(error) == status


def words(shown: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in shown.splitlines()]


def test_an_unknown_role_or_scope_is_refused_with_the_known_ones(
    environment: dict[str, str],
) -> None:
    for words, known in (
        (("user", "add", "eve", "--role", "boss"), [*Role]),
        (("user", "set", "local", "--role", "boss"), [*Role]),
        (("key", "add", "local", "--scope", "boss"), [*Scope]),
    ):
        code, _, error = mpt_here(environment, "admin", *words)
        assert code == 1
        assert all(f"'{word}'" in error for word in known), error


def test_an_admin_changes_a_user(environment: dict[str, str]) -> None:
    _, key, _ = mpt_here(environment, "admin", "user", "add", "bob", "--role", "viewer")
    code, shown, _ = mpt_here(environment, "admin", "user", "set", "bob", "--disabled")
    assert code == 0
    assert ["bob", "viewer", "no", "1", "-", "-", "-", "-", "no"] in words(shown)
    for limit, stored in (("4", "4"), ("0", "0"), ("none", "-")):
        standing = ("--shares", "2", "--max-running", limit, "--may-jump")
        _, shown, _ = mpt_here(environment, "admin", "user", "set", "bob", *standing)
        assert ["bob", "viewer", "no", "2", stored, "-", "-", "-", "yes"] in words(shown)
    code, _, error = mpt_here(environment, "admin", "user", "set", "bob", "--max-running", "all")
    assert (code, 'give a number, or "none"' in error) == (2, True)
    code, shown, _ = mpt_here(environment, "cancel", "--user", "bob", "--status", "queued")
    assert (code, shown) == (0, "0 cancelled, 0 running will end soon\n")
    for typed in ((), ("--tag", "a", "an-id")):
        code, _, error = mpt_here(environment, "cancel", *typed)
        assert (code, "or select some with options" in error) == (2, True)
    code, _, error = mpt_here({**environment, "MPT_API_KEY": key.strip()}, "wait", "a")
    assert code == 1
    assert "the key from MPT_API_KEY: the user of this API key was disabled: ask an admin" in error
    code, _, error = mpt_here(environment, "admin", "user", "set", "bob")
    assert code == 2
    assert "nothing to set" in error
    code, _, error = mpt_here(environment, "admin", "key", "add", "bob", "--days", "0")
    assert code == 1
    assert error.startswith("mpt: /lasts_days:")
    code, _, error = mpt_here(environment, "admin", "user", "add", "bob")
    assert (code, error) == (1, "mpt: there is a user bob already: choose another name\n")


def test_a_sweep_of_the_server(environment: dict[str, str]) -> None:
    code, shown, _ = mpt(environment, "admin", "apply-retention", "--dry-run")
    assert code == 0
    assert shown.splitlines() == [
        "would delete 0 experiments (0 bytes of files) in all",
        "would purge 0 experiments (0 bytes of files) in all",
    ]


def test_the_client_changes_and_deletes(client: Client) -> None:
    submitted = client.submit(ppca_spec(), visibility="lab", cache=False)
    assert client.me()["name"] == submitted["owner"] == "local"
    ended = client.wait(submitted["id"], timeout_s=60)
    assert ended["visibility"] == "lab"
    assert submitted["id"] in [one["id"] for one in client.experiments(whose="lab")]
    assert client.change(submitted["id"], note="kept", visibility="private")["note"] == "kept"
    client.delete(submitted["id"])
    with pytest.raises(Refused, match="you have no experiment"):
        client.get(submitted["id"])
