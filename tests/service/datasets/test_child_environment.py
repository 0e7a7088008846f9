"""Child processes that read users' files get no secret of the service."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mptcore.specs.stored import stored_spec
from service.datasets import child_environment
from service.experiments.inputs import Inputs
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until
from worker.children import Spawned, WarmParent
from worker.children import environment as runner_environment

SECRETS = dict.fromkeys(
    "PGPASSWORD MPT_DATABASE_URL MPT_DATABASE_PASSWORD_FILE MPT_REDIS_URL REDISCLI_AUTH "
    "CREDENTIALS_DIRECTORY AWS_SECRET_ACCESS_KEY GITHUB_TOKEN HUGGING_FACE_HUB_TOKEN SSH_AUTH_SOCK "
    "NVIDIA_API_KEY MY_OWN".split(),
    "secret",
)
HUB = {"HF_TOKEN": "secret", "HTTPS_PROXY": "secret", "no_proxy": "secret"}
USEFUL = dict.fromkeys(
    "PATH LANG LC_ALL TZ TMPDIR CUDA_VISIBLE_DEVICES OMP_NUM_THREADS MALLOC_ARENA_MAX "
    "NVIDIA_VISIBLE_DEVICES PYTHONPATH HF_HOME MPT_DATA_DIR MPT_MODELS_DIR".split(),
    "useful",
)


def test_a_run_gets_the_needed_variables_and_no_secret() -> None:
    """A run that may download gets those of the hub, too."""
    given = {**SECRETS, **HUB, **USEFUL}
    assert child_environment.run_environment(given) == USEFUL
    assert child_environment.hub_environment(given) == HUB


def environ_of(pid: int) -> dict[str, str]:
    """The environment of a process. It is empty until the process executes its program."""
    file = Path(f"/proc/{pid}/environ")
    wait_until(lambda: bool(file.read_bytes()), what=f"process {pid}")
    lines = file.read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


def test_the_processes_of_runs_have_that_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **HUB}.items():
        monkeypatch.setenv(name, value)
    devnull = os.open(os.devnull, os.O_RDWR)
    never_written, held_open = os.pipe()  # so that it waits for input until it is closed
    spawned = Spawned((never_written, devnull, devnull), [sys.executable, "-c", "input()"])
    parent = WarmParent()
    try:
        for pid in (spawned.pid, parent._process.pid):
            found = environ_of(pid)
            assert found == runner_environment()
            assert not found.keys() & {*SECRETS, *HUB}
    finally:
        spawned.close()
        parent.close()
        for file in (devnull, never_written, held_open):
            os.close(file)


TEXT = {
    "model": {"family": "masked_lm", "checkpoint": "tiny"},
    "data": {"source": "text", "file": "a.txt"},
}
GLUE = {**TEXT, "data": {"source": "glue", "subset": "sst2", "split": "validation"}}
MNIST = ppca_spec(
    data={"source": "mnist"},
    model={"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"},
)


@pytest.mark.parametrize(
    ("spec", "missing"),
    [(TEXT, "models/tiny"), (GLUE, "glue/sst2/validation.txt"), (MNIST, "MNIST/raw")],
)
def test_only_a_spec_whose_inputs_are_not_in_the_folders_needs_the_hub(
    settings: Settings, tmp_path: Path, spec: dict[str, object], missing: str
) -> None:
    places = {"data_dir": tmp_path, "models_dir": tmp_path / "models"}
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "glue/sst2").mkdir(parents=True)
    (tmp_path / "glue/sst2/validation.txt").touch()
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz").touch()
    here = Inputs(settings.model_copy(update=places))
    assert not here.needs_hub(stored_spec(spec))
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    assert here.needs_hub(stored_spec(spec))
    nowhere = Inputs(settings.model_copy(update={"data_dir": None, "models_dir": None}))
    assert nowhere.needs_hub(stored_spec(spec))
    assert not nowhere.needs_hub(stored_spec(ppca_spec()))


SERVICE_PROCESS = """
import ctypes, os, sys
from service.operations.start import hide_memory
if os.getuid() == 0:
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1)  # as it is after the start of a program
if "hidden" in sys.argv:
    hide_memory()
print("started", flush=True)
input()
"""


@pytest.mark.parametrize("how", ["hidden", "open"])
def test_a_process_of_the_same_user_cannot_read_the_environment_of_a_service_process(
    how: str,
) -> None:
    """Without `hide_memory` it can."""
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE_PROCESS, how], env={**os.environ, **SECRETS},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert service.stdout is not None
    assert service.stdout.readline() == b"started\n"
    read = ["cat", f"/proc/{service.pid}/environ"]
    user = 65534 if os.getuid() == 0 else None
    done = subprocess.run(read, user=user, capture_output=True, check=False)
    service.communicate(b"\n", timeout=60)
    assert (b"secret" in done.stdout) == (how == "open")
