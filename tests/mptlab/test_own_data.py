"""The user's own numbers, scored and uploaded by typed commands."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from mptlab import Client
from mptlab.commands import own_data
from mptlab.commands.context import CommandContext
from tests.support.commands import mpt_here

ROWS = np.random.default_rng(5).normal(size=(40, 4)).round(3)
NAMED = [["id", "a", "b", "c", "d"], *([f"s{i}", *map(str, row)] for i, row in enumerate(ROWS))]
FIELDS = ("--set", "evaluate.masks.per_size=10", "--set", "data.heldout=0.3")


def table(file: Path, separator: str = ",") -> str:
    file.write_text("".join(f"{separator.join(row)}\n" for row in NAMED))
    return str(file)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checkpoint(folder: str) -> None:
    Path(folder).mkdir()
    Path(folder, "config.json").write_bytes(b"{}")
    Path(folder, "tokenizer.json").write_bytes(b"{}")
    Path(folder, "model.safetensors").write_bytes(b"weights")


def data_of(client: Client, experiment_id: str) -> dict[str, object]:
    data: dict[str, object] = client.get(experiment_id.strip())["spec"]["data"]
    return data


def test_one_command_scores_a_table_for_several_k(
    environment: dict[str, str], client: Client
) -> None:
    table(Path("own.csv"))
    words = ("submit", "--data", "own.csv", "--index", "id", "--latent-dim", "1..2", *FIELDS)
    code, shown, error = mpt_here(environment, *words, "--watch", "--json")
    assert code == 0, error
    rows = json.loads(shown)
    assert [row["model.latent_dim"] for row in rows] == [1, 2]
    assert all(row["lml_heldout"] < 0 for row in rows)
    one = client.get(rows[0]["experiment_id"])
    assert (one["spec"]["data"]["n"], one["spec"]["data"]["dim"]) == (40, 4)
    assert one["spec"]["model"]["init"] == "maximum_likelihood"
    (dataset,) = [d for d in client.datasets() if d["id"] == one["spec"]["data"]["dataset"]]
    assert dataset["name"] == "own.csv"
    again = client.upload("own.csv", index="id")
    assert (again["id"], again["columns"]) == (dataset["id"], ["a", "b", "c", "d"])


def test_without_a_choice_of_k_some_are_compared(
    environment: dict[str, str], client: Client
) -> None:
    table(Path("unchosen.csv"))
    words = ("submit", "--data", "unchosen.csv", "--index", "id", *FIELDS, "--watch", "--json")
    code, shown, error = mpt_here(environment, *words)
    assert code == 0, error
    assert [row["model.latent_dim"] for row in json.loads(shown)] == [1, 2, 3]
    assert "K from 1 to 3 are compared: --latent-dim chooses others" in error


def ppca_lml(x: np.ndarray[Any, Any], latent_dim: int) -> float:
    """Return the highest mean log-likelihood of a PPCA (Tipping & Bishop 1999, Eq. 3)."""
    values = np.sort(np.linalg.eigvalsh(np.cov(x.T, bias=True)))
    values[:-latent_dim] = values[:-latent_dim].mean()
    return float(-0.5 * (len(values) * (np.log(2 * np.pi) + 1) + np.log(values).sum()))


def test_a_header_of_numbers_changes_no_result(environment: dict[str, str], client: Client) -> None:
    """Results are the same by the command line, the client and plain HTTP."""
    lines = [",".join(map(str, row)) for row in ROWS.tolist()]
    Path("spectra.csv").write_text("400,410,420,430\n" + "\n".join(lines) + "\n")
    words = ("submit", "--data", "spectra.csv", "--latent-dim", "2", "--set", "data.heldout=null")
    columns = ("--columns", "400,420,430")
    for more, x in (((), ROWS), (columns, ROWS[:, [0, 2, 3]])):
        code, shown, error = mpt_here(environment, *words, *more, "--watch", "--json")
        assert code == 0, error
        assert "mpt: spectra.csv: 40 rows × 4 columns; header: first line\n" in error
        metrics = {one["name"]: one["value"] for one in json.loads(shown)["metrics"]}
        assert metrics["lml"] == pytest.approx(ppca_lml(x, 2), rel=1e-9)
    made = client.upload("spectra.csv")
    key = Path(environment["MPT_STORE"], "api-key").read_text().strip()
    answer = httpx.post(
        f"{client.url}/v1/datasets?name=other.csv",
        content=Path("spectra.csv").read_bytes(),
        headers={"Authorization": f"Bearer {key}"},
    )
    assert (answer.status_code, answer.json()["id"]) == (200, made["id"])
    assert made["columns"] == ["400", "410", "420", "430"]
    raw = client.upload("spectra.csv", header=False)
    spec = {
        "model": {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"},
        "data": {"source": "upload", "dataset": raw["id"]},
        "evaluate": {"masks": {"schedule": "all", "per_size": 1}},
    }
    run = client.experiments.create(spec, wait=True)
    with_header = np.vstack([[400, 410, 420, 430], ROWS])
    assert run.metrics["lml"] == pytest.approx(ppca_lml(with_header, 2), rel=1e-9)


def test_warnings_of_the_runs_are_printed_once(environment: dict[str, str], client: Client) -> None:
    np.savetxt("units.csv", ROWS * [1, 1, 1, 500], delimiter=",", header="a,b,c,d", comments="")
    words = ("submit", "--data", "units.csv", *FIELDS, "--watch", "--no-cache", "--latent-dim")
    for latent_dim in ("1..2", "3"):
        code, _, error = mpt_here(environment, *words, latent_dim)
        assert code == 0, error
        assert error.count("mpt: standard deviations differ much between columns: ") == 1
        assert "in d. PPCA has the same noise" in error
    _, _, again = mpt_here(environment, "watch", client.experiments.list(1)[0].id)
    assert "mpt: standard deviations differ much" in again
    scaled = ("3", "--set", "data.standardize=columns")
    code, shown, error = mpt_here(environment, *words, *scaled)
    assert code == 0, error
    assert "standard deviations" not in error
    code, _, error = mpt_here(environment, "download", shown.split()[0], "--to", "kept")
    assert code == 0, error
    assert Path("kept", "weights.safetensors").is_file()


def test_two_families_are_compared_on_the_same_rows(
    environment: dict[str, str], client: Client
) -> None:
    np.savetxt("two.csv", ROWS * 2, delimiter=",", header="a,b,c,d", comments="")
    words = ("submit", "--data", "two.csv", "--latent-dim", "1", *FIELDS)
    code, shown, error = mpt_here(
        environment, *words, "--model", "ppca,factor_analysis", "--watch", "--json"
    )
    assert code == 0, error
    rows = json.loads(shown)
    assert [row["model.family"] for row in rows] == ["ppca", "factor_analysis"]
    assert {row["lml_heldout_behind_best"] for row in rows} >= {0.0}
    code, _, error = mpt_here(environment, *words, "--model", "ppca,vae")
    assert code == 2
    assert "ppca,vae" in error


def test_a_file_with_semicolons_needs_its_separator(environment: dict[str, str]) -> None:
    Path("semi.csv").write_text("id;a;b\n1;2,5;3\n")
    code, _, error = mpt_here(environment, "upload", "semi.csv", "--index", "id")
    assert (code, "--sep ';', and --decimal ','" in error) == (1, True)
    words = ("--index", "id", "--sep", ";", "--decimal", ",")
    code, _, error = mpt_here(environment, "upload", "semi.csv", *words)
    assert (code, "1 rows × 2 columns; header: first line; ids: id" in error) == (0, True)


def test_a_fitted_model_scores_other_rows(environment: dict[str, str], client: Client) -> None:
    np.savetxt("old.csv", ROWS, delimiter=",", header="a,b,c,d", comments="")
    np.savetxt("new.csv", ROWS[:9] + 1, delimiter=",", header="a,b,c,d", comments="")
    fit = ("--data", "old.csv", "--latent-dim", "2", "--set", "data.standardize=columns")
    code, _, error = mpt_here(environment, "submit", *fit, *FIELDS, "--name", "fitted", "--watch")
    assert code == 0, error
    words = ("submit", "--data", "new.csv", "--model", "fitted")
    code, shown, error = mpt_here(environment, *words, "--watch", "--json")
    assert code == 0, error
    spec = json.loads(shown)["spec"]
    fitted = client.experiments.list(2)[1]
    assert spec["model"]["experiment"] == fitted.id
    assert (spec["model"]["latent_dim"], spec["data"]["standardize"]) == (2, "columns")
    assert spec["data"]["heldout"] is None
    assert spec["evaluate"] == fitted.spec["evaluate"]
    assert client.dataset(spec["data"]["dataset"])["columns"] == [*"abcd"]
    moved = np.column_stack([ROWS[:9, 3], ROWS[:9, 0] * 5, ROWS[:9, 2], ROWS[:9, 1], ROWS[:9, 0]])
    np.savetxt("moved.csv", moved + 1, delimiter=",", header="d,other,c,b,a", comments="")
    code, again, error = mpt_here(
        environment, "submit", "--data", "moved.csv", "--model", "fitted", "--watch", "--json"
    )
    assert code == 0, error
    of = [{one["name"]: one["value"] for one in json.loads(text)["metrics"]}
          for text in (shown, again)]  # fmt: skip
    assert of[0]["lml"] == pytest.approx(of[1]["lml"], rel=1e-12)
    scored = json.loads(shown)
    code, rows, error = mpt_here(environment, "rows", scored["id"], "--json", "--top", "3")
    assert code == 0, error
    least = client.rows(scored["id"])
    assert sum(one["log_likelihood"] for one in least) / 9 == pytest.approx(of[0]["lml"], rel=1e-12)
    least.sort(key=lambda one: float(one["p_value"]))
    assert json.loads(rows) == least[:3]
    code, shown, _ = mpt_here(environment, "rows", scored["id"])
    assert "of 9 usual rows one is below 0.11" in shown
    assert "of 9 rows;" not in shown
    assert "2 of 9 rows; " in mpt_here(environment, "rows", scored["id"], "--top", "2")[1]
    code, text, _ = mpt_here(environment, "rows", scored["id"], "--csv", "-")
    assert [line.split(",")[0] for line in text.splitlines()] == ["row", *map(str, range(9))]
    code, _, error = mpt_here(environment, "rows", "fitted")
    assert code == 2
    assert "fitted has no scores of rows; to score rows: mpt submit" in " ".join(error.split())
    code, _, error = mpt_here(environment, *words)
    assert f"mpt: the log-likelihood of each row: mpt rows {scored['id']}" in error
    code, _, error = mpt_here(environment, *words, "--latent-dim", "2")
    assert code == 2
    assert "--latent-dim is that of fitted: leave it out" in error
    code, _, error = mpt_here(environment, *words[:3], "--model", "fited")
    assert code == 2
    assert "you have no experiment fited: did you mean fitted?" in " ".join(error.split())


def test_ids_of_rows_come_back(environment: dict[str, str], client: Client) -> None:
    """Held-out rows and unusual rows are found by their ids, in the order of the file."""
    rows = [[f"s{i}", f"b{i % 3}", *row] for i, row in enumerate(ROWS.tolist())]
    rows[7][3] = 50.0  # of column b
    text = "\n".join(",".join(map(str, row)) for row in rows)
    Path("named.csv").write_text(f"id,batch,a,b,c,d\n{text}\n")
    words = ("submit", "--data", "named.csv", "--index", "id,batch", "--watch", "--json")
    fit = ("--latent-dim", "1", *FIELDS, "--name", "with ids")
    code, shown, error = mpt_here(environment, *words, *fit)
    assert code == 0, error
    assert "40 rows × 4 columns; header: first line; ids: id, batch" in error
    (file,) = client.download(json.loads(shown)["id"], ".", "heldout_rows.csv")
    held_out = pd.read_csv(file)
    assert len(held_out) == 12
    assert held_out["id"].tolist() == [f"s{row}" for row in held_out["row"]]
    assert held_out["batch"].tolist() == [f"b{row % 3}" for row in held_out["row"]]
    code, shown, error = mpt_here(environment, *words, "--model", "with ids")
    assert code == 0, error
    code, shown, _ = mpt_here(environment, "rows", json.loads(shown)["id"], "--json", "--top", "1")
    (least,) = json.loads(shown)
    assert (least["row"], least["id"], least["batch"]) == (7, "s7", "b1")
    assert least["unusual_columns"][0].startswith("b +")


def test_a_followed_sweep_names_the_command_that_uses_its_best_run(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savetxt("advised.csv", ROWS * 2, delimiter=",", header="a,b,c,d", comments="")
    advice: list[str] = []
    monkeypatch.setattr(CommandContext, "advise", lambda _, command: advice.append(command))
    words = ("submit", "--data", "advised.csv", "--latent-dim", "1..2", *FIELDS, "--watch")
    assert mpt_here(environment, *words)[0] == 0
    command, _, _ = advice[-1].partition(",")
    *before, best = command.split()
    assert before == ["mpt", "submit", "--data", "NEW.csv", "--model"]
    assert mpt_here(environment, "submit", "--data", "advised.csv", "--model", best)[0] == 0


def test_a_sweep_as_a_model_names_its_best_runs(environment: dict[str, str]) -> None:
    np.savetxt("swept.csv", ROWS * 3, delimiter=",", header="a,b,c,d", comments="")
    fit = ("submit", "--data", "swept.csv", "--latent-dim", "1..2", *FIELDS, "--watch")
    code, _, error = mpt_here(environment, *fit, "--name", "two sizes")
    assert code == 0, error
    words = ("submit", "--data", "swept.csv", "--model", "two sizes")
    code, _, error = mpt_here({**environment, "COLUMNS": "200"}, *words)
    assert code == 2
    assert "two sizes is a sweep: give the id of one of its runs, such as the best, 01" in error


def test_columns_of_a_tsv_and_the_array_of_an_npz(
    environment: dict[str, str], client: Client
) -> None:
    table(Path("own.tsv"), "\t")
    one = ("submit", "--latent-dim", "1", "--model", "factor_analysis", *FIELDS)
    code, made, error = mpt_here(environment, *one, "--data", "own.tsv", "--columns", "c, a, d")
    assert code == 0, error
    assert (data_of(client, made)["dim"], client.get(made.strip())["name"]) == (3, "own")
    np.savez("two.npz", x=ROWS, y=ROWS[:, :3])
    code, _, error = mpt_here(environment, *one, "--data", "two.npz")
    assert code == 1
    assert "give one of the file's arrays: x (40 × 4), y (40 × 3)" in error
    code, made, _ = mpt_here(environment, *one, "--data", "two.npz", "--array", "y")
    assert data_of(client, made)["array"] == "y"
    code, again, _ = mpt_here(environment, *one, "--data", "two.npz", "--array", "y")
    assert data_of(client, again) == data_of(client, made)  # the same bytes, the same data set


def test_a_spec_names_a_file_or_an_upload(environment: dict[str, str], client: Client) -> None:
    np.save("named.npy", ROWS + 1)
    model = {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"}
    spec = {"model": model, "data": {"source": "upload", "dataset": "named.npy"}}
    first = client.submit(spec)
    Path("spec.json").write_text(json.dumps(spec))
    _, second, _ = mpt_here(environment, "submit", "spec.json")
    Path("named.npy").unlink()
    third = client.submit(spec)["id"]  # now by the name of the upload
    for one in (second, third):
        assert data_of(client, one) == first["spec"]["data"]
    code, shown, _ = mpt_here(environment, "submit", "--data", "named.npy", "--latent-dim", "1")
    assert (code, data_of(client, shown)["dataset"]) == (0, first["spec"]["data"]["dataset"])


def test_missing_values_are_counted(environment: dict[str, str], client: Client) -> None:
    """The columns that are used count, with those that miss most first."""
    cells = np.where(np.arange(160).reshape(40, 4) % 9 == 1, np.nan, ROWS)
    cells[:, 1] = ROWS[:, 1]
    lines = (
        f"s{i},{','.join('' if np.isnan(x) else str(x) for x in row)}"
        for i, row in enumerate(cells)
    )
    Path("gaps.csv").write_text("id,a,b,c,d\n" + "\n".join(lines) + "\n")
    np.savez("gaps.npz", x=cells, y=ROWS[:, :3])
    words = ("submit", "--latent-dim", "1", "--data")
    for command, counted in (
        (("upload", "gaps.csv", "--index", "id"), "13 of 160 cells in 40 rows (by column: c 5"),
        ((*words, "gaps.csv", "--index", "id"), "13 of 160 cells in 40 rows (by column: c 5"),
        ((*words, "gaps.csv", "--columns", "b,c"), "5 of 80 cells in 40 rows (by column: c 5)"),
        ((*words, "gaps.npz", "--array", "x"), "array x: 13 of 160 cells in 40 rows"),
        ((*words, "gaps.npz", "--array", "y"), None),
    ):
        code, made, error = mpt_here(environment, *command)
        assert code == 0, error
        assert "13 missing cells" in error
        assert ("have no value: PPCA and factor analysis integrate" in error) == bool(counted)
        assert (counted or "") in error
        if command[0] == "submit":
            client.cancel(made.strip())


def test_wrong_columns_are_refused(environment: dict[str, str]) -> None:
    file = table(Path("own.csv"))
    text = Path(file).read_text(encoding="utf-8")
    Path("own.csv").write_text(text.replace("s1,", "s0,"), encoding="utf-8")
    code, _, error = mpt_here(environment, "upload", file)
    assert code == 1
    assert error.startswith("mpt: own.csv: column id is not numbers: line 2 is 's0', and 39 more. ")
    assert "ids (--index NAME" in error
    Path("own.csv").write_text(text, encoding="utf-8")
    code, _, error = mpt_here(environment, "upload", file)
    assert (code, "ids: id" in error) == (0, True)
    code, _, error = mpt_here(environment, "upload", file, "--index", "e")
    assert (code, "no column e; it has id, a, b, c, d" in error) == (1, True)
    words = ("submit", "--data", file, "--latent-dim", "1", "--columns", "a,id")
    code, _, error = mpt_here(environment, *words)
    assert code == 1
    assert "id: not in the upload, which has a, b, c, d; id was left out: not numbers" in error
    Path("own.csv").write_text("id,a,b\n1,2,3\n2,3\n")
    code, _, error = mpt_here(environment, "upload", "own.csv", "--index", "id")
    assert error.startswith("mpt: own.csv: line 3 has 2 cells, the first line 3")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give a spec file, or your numbers: --data mine.csv"),
        (["own.json", "--no-header"], "options of --data are not for a spec"),
        (["own.json", "--latent-dim", "2"], "options of --data are not for a spec"),
        (["--data", "own.csv", "--model", "vae"], "vae; or give ppca or factor_analysis"),
        (["--data", "a.xlsx", "--latent-dim", "2"], "is not a file of numbers: give one of .csv"),
        (["--data", "a.npy", "--latent-dim", "2", "--index", "a"], "there is no file a.npy"),
    ],
)  # fmt: skip
def test_wrong_options_are_usage_errors(
    environment: dict[str, str], words: list[str], told: str
) -> None:
    Path("a.xlsx").write_bytes(b"")
    code, _, error = mpt_here({**environment, "COLUMNS": "200"}, "submit", *words)
    assert code == 2
    assert told in " ".join(error.replace("│", " ").split())


def test_one_command_scores_texts_with_the_users_checkpoint(
    environment: dict[str, str], client: Client
) -> None:
    checkpoint("my bert")
    Path("my bert", "pytorch_model.bin").write_bytes(b"a pickle, which is never taken")
    Path("mine.txt").write_text("the cat sat\nthe dog ran\n")
    words = ("submit", "--checkpoint", "./my bert", "--text", "mine.txt", "--json")
    names = []
    for _ in range(2):
        code, shown, error = mpt_here(environment, *words)
        assert code == 0, error
        one = json.loads(shown)
        names.append(one["spec"]["model"]["checkpoint"])
        assert data_of(client, one["id"])["source"] == "text"
        client.cancel(one["id"])
    assert re.fullmatch(r"my-bert-[0-9a-f]{12}", names[0])
    models = Path(environment["MPT_STORE"], "models")
    assert [path.name for path in models.iterdir()] == names[:1] == names[1:]
    taken = {path.name: path.read_bytes() for path in (models / names[0]).iterdir()}
    of_text = dict.fromkeys(["config.json", "tokenizer.json"], b"{}")
    assert taken == {**of_text, "model.safetensors": b"weights"}


def test_a_checkpoint_without_safetensors_is_refused(environment: dict[str, str]) -> None:
    Path("old").mkdir()
    Path("old", "pytorch_model.bin").write_bytes(b"a pickle")
    Path("mine.txt").write_text("the cat sat\n")
    words = ("submit", "--text", "mine.txt")
    for folder in ("./old", "old"):
        code, _, error = mpt_here(environment, *words, "--checkpoint", folder)
        assert (code, error.count("\n")) == (1, 1)
        assert "old has no weights in safetensors: save_pretrained" in error
    code, _, error = mpt_here({**environment, "COLUMNS": "200"}, *words)
    assert code == 2
    assert "give the model of your texts: --model FOLDER, or a name" in error
    elsewhere = {**environment, "MPT_STORE": "elsewhere", "MPT_API_KEY": "mpt_x_y"}
    checkpoint("bert")
    code, _, error = mpt_here(elsewhere, *words, "--model", "./bert")
    assert (code, "MPT_MODELS_DIR of the workers" in error) == (1, True)


def test_chosen_columns_may_stand_beside_text(direct: Client, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("name,a,b\nx,1.5,2\ny,0.5,1\nz,2.5,3\n")
    data = own_data.data_of(direct, str(file), ["a", "b"], None, {})
    assert direct.dataset(data["dataset"])["dim"] == 2
