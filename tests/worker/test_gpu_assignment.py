"""Assignment of GPUs to workers, with a simulated NVML."""

import logging
import os
import signal
import subprocess
import sys
import threading
from inspect import unwrap
from pathlib import Path

import pytest
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Queue
from service.queue import rooms
from service.settings import Settings
from service.workers.models import Worker
from tests.support.nvml import GIB, Card, Nvml
from tests.support.processes import wait_until
from worker import every_gpu, fitness, gpus, main, presence
from worker.every_gpu import PinnedSlot, PinnedWorkers

FIRST, SECOND, DIVIDED = "GPU-8932f937-d72c", "GPU-89aa0000-0001", "GPU-ffff0000-0002"
PARTS = ["MIG-11110000-0000", "MIG-22220000-0000"]


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, and one that is divided in two."""
    parts = [Card(PARTS[0], free=9 * GIB, processes={42: GIB}), Card(PARTS[1])]
    cards = Card(FIRST), Card(SECOND, free=None), Card(DIVIDED, parts=parts)
    monkeypatch.setattr(gpus, "pynvml", Nvml(*cards))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # to be put back as it was
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        (None, [FIRST, SECOND, *PARTS]),
        ("", []),
        ("1,0", [SECOND, FIRST]),
        (SECOND, [SECOND]),
        ("GPU-8932, GPU-89aa", [FIRST, SECOND]),
        ("GPU-89", []),  # of which there are two
        (PARTS[1], [PARTS[1]]),
        ("MIG-1", [PARTS[0]]),
        ("2", [PARTS[0]]),  # because CUDA sees only one part
        (DIVIDED, [PARTS[0]]),
        ("0,7,1", [FIRST]),
    ],
)
def test_visible_gpus(names: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert gpus.visible() == seen


@pytest.mark.parametrize(("mode", "seen"), [((1, 0), PARTS), ((0, 1), [DIVIDED])])
def test_a_gpu_is_divided_by_its_present_mode(
    mode: tuple[int, int], seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mode that waits for a reset of the GPU does not count yet."""
    divided = Card(DIVIDED, parts=[Card(part) for part in PARTS], mig_mode=mode)
    monkeypatch.setattr(gpus, "pynvml", Nvml(divided))
    assert gpus.visible() == seen


def test_without_nvml_no_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(Nvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError("library not found")

    monkeypatch.setattr(gpus, "pynvml", Without())
    assert gpus.visible() == []
    assert presence.vitals(Queue.GPU).gpu_uuid is None


def test_figures_of_a_part_of_a_gpu() -> None:
    found = gpus.figures(PARTS[0], run_pid=42)
    assert (found["gpu_number"], found["gpu_uuid"]) == (2, PARTS[0])
    assert (found["gpu_memory_free"], found["gpu_memory_ours"]) == (9 * GIB, GIB)


@pytest.mark.parametrize(
    ("pid", "reported", "ours"), [(7, 3, 3), (42, 3, GIB), (42, 2 * GIB, 2 * GIB)]
)
def test_memory_that_only_the_run_knows_counts_as_ours(pid: int, reported: int, ours: int) -> None:
    """In a container the driver knows its process by another number."""
    assert gpus.figures(PARTS[0], pid, reported)["gpu_memory_ours"] == ours


def test_missing_driver_figures_do_not_hide_others() -> None:
    found = gpus.figures(SECOND, run_pid=42)
    assert (found["gpu_memory_free"], found["gpu_memory_total"]) == (None, None)
    assert (found["gpu"], found["gpu_number"], found["gpu_memory_ours"]) == ("A GPU", 1, 0)


@pytest.fixture
def can_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "require_gpu", lambda: None)


@pytest.mark.usefixtures("can_compute")
def test_workers_spread_over_the_gpus(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    for number in range(6):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=number > 0)
        monkeypatch.setattr(main, "worker_name", lambda number=number: f"w{number}")
        main.take_gpu(settings)
        taken.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert taken == [FIRST, SECOND, *PARTS, FIRST, SECOND]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    with database.snapshot() as session:
        uuids = session.scalars(select(Worker.gpu_uuid).order_by(Worker.id)).all()
        assert uuids == taken
        gpus = {place.memories[0].id for place in rooms.places(session, 60)}
        assert len(gpus) == 4


@pytest.mark.usefixtures("can_compute")
def test_a_pinned_worker_keeps_its_gpu(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-89a")
        monkeypatch.setattr(main, "worker_name", lambda number=number: f"w{number}")
        main.take_gpu(settings)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == SECOND


def test_a_worker_with_an_unusable_gpu_ends(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise SystemExit("this worker can use no GPU")

    monkeypatch.setattr(main, "require_gpu", refuse)
    with pytest.raises(SystemExit, match="can use no GPU"):
        main.take_gpu(settings)
    with database.snapshot() as session:
        assert session.scalar(select(Worker.id)) is None


SAYS_ITS_GPU = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
uuid = os.environ["CUDA_VISIBLE_DEVICES"]
began = len(list(folder.glob(uuid + "*")))
folder.joinpath(f"{uuid} {began}").write_text(str(os.getpid()))
if uuid == "fails" and began == 0:
    sys.exit(3)
if uuid == "ends":
    sys.exit(0)
signal.sigwait({signal.SIGTERM})
"""


def test_a_worker_for_each_gpu(tmp_path: Path) -> None:
    """One that fails is started again, one whose time is over is not; all end with us."""
    command = (sys.executable, "-c", SAYS_ITS_GPU, str(tmp_path))
    each = PinnedWorkers(["stays", "fails", "ends"], command, restart_s=0.1)
    stopping = threading.Event()
    leads_its_session: list[bool] = []

    def have_begun() -> bool:
        return {path.name for path in tmp_path.iterdir() if path.read_text()} == {
            "stays 0", "fails 0", "fails 1", "ends 0"
        }  # fmt: skip

    def stop() -> None:
        wait_until(have_begun)
        pid = int((tmp_path / "stays 0").read_text())
        leads_its_session.append(os.getsid(pid) == pid)  # so that Ctrl-C does not reach it
        stopping.set()

    watch = threading.Thread(target=stop)
    watch.start()
    each.run(stopping)
    watch.join()
    assert have_begun()
    assert leads_its_session == [True]
    for name in ("stays 0", "fails 1"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


def test_several_workers_for_each_gpu(tmp_path: Path) -> None:
    """One of them that fails is started again."""
    fails_first = (
        "import os, pathlib, signal, sys\n"
        "own = pathlib.Path(sys.argv[1]) / os.environ['CUDA_VISIBLE_DEVICES']\n"
        "own.mkdir(exist_ok=True)\n"
        "(own / str(os.getpid())).touch()\n"
        "try:\n"
        "    (own.parent / 'failed').touch(exist_ok=False)\n"
        "except FileExistsError:\n"
        "    signal.sigwait({signal.SIGTERM})\n"
        "else:\n"
        "    sys.exit(3)\n"
    )
    command = (sys.executable, "-S", "-c", fails_first, str(tmp_path))
    each = PinnedWorkers(["one", "two"], command, restart_s=0.1, slots=2)
    stopping = threading.Event()

    def numbers() -> list[int]:
        return sorted(len([*path.iterdir()]) for path in tmp_path.iterdir() if path.is_dir())

    def stop() -> None:
        try:
            wait_until(lambda: numbers() == [2, 3])
        finally:
            stopping.set()

    watch = threading.Thread(target=stop)
    watch.start()
    each.run(stopping)
    watch.join()
    assert numbers() == [2, 3]


@pytest.mark.parametrize(
    ("flags", "slots"),
    [([], 1), (["--local"], 1), (["--lifetime", "90s"], 1), (["--slots", "2"], 2)],
)
def test_a_worker_of_a_lab_or_of_this_machine_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, flags: list[str], slots: int
) -> None:
    """Pinned workers of `mpt serve` need no broker."""
    started: list[tuple[list[PinnedSlot], tuple[str, ...], bool]] = []

    def run(self: PinnedWorkers, _: threading.Event) -> None:
        started.append(([*self._due], tuple(self._command[2:]), self._may_end))

    monkeypatch.setattr(every_gpu, "begin", lambda: settings)
    monkeypatch.setattr(PinnedWorkers, "run", run)
    monkeypatch.setattr(sys, "argv", ["every_gpu", *flags])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    unwrap(every_gpu.main)()
    node = ("worker", "gpu", *(flags if slots == 1 else []))
    is_local = "--local" in flags
    command = ("worker", "gpu", "--local") if is_local else node
    each = [(uuid, slot) for uuid in (FIRST, SECOND, *PARTS) for slot in range(slots)]
    assert started == [(each, command, not is_local)]


@pytest.mark.parametrize("may_end", [True, False])
def test_workers_of_this_machine_are_started_again_for_any_status(may_end: bool) -> None:
    command = sys.executable, "-S", "-c", ""
    each = PinnedWorkers(["ends"], command, restart_s=600, may_end=may_end)
    each._look()
    each._processes["ends", 0].wait()
    each._look()
    assert [*each._due] == ([] if may_end else [("ends", 0)])


@pytest.mark.parametrize("flags", [["--local", "--lifetime", "90s"], ["--slots", "0"]])
def test_options_that_cannot_be_met_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["every_gpu", *flags])
    with pytest.raises(SystemExit):
        unwrap(every_gpu.main)()
    assert flags[-2] in capsys.readouterr().err


def test_a_gpu_counts_if_torch_can_use_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging, "disable", lambda _: None)
    monkeypatch.setattr(fitness, "gpu_defect", lambda: None)
    assert gpus.main() == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(fitness, "gpu_defect", lambda: "no kernel")
    assert gpus.main() == 1
    assert "torch cannot use the GPU of this machine: no kernel" in capsys.readouterr().err
    monkeypatch.setattr(gpus, "visible", lambda: [])
    assert gpus.main() == 1


def test_workers_end_with_what_started_them() -> None:
    """Linux counts the thread that started a process as its parent."""
    each = PinnedWorkers([], (sys.executable, "-S", "-c", "import time; time.sleep(600)"))
    started: list[subprocess.Popen[bytes]] = []
    starter = threading.Thread(target=lambda: started.append(each._started("one")))
    starter.start()
    starter.join()
    assert started[0].wait(30) == -signal.SIGTERM


@pytest.mark.usefixtures("can_compute")
def test_a_gpu_worker_reports_its_memory_limit_at_once(
    settings: Settings, database: Database
) -> None:
    """Claims of other workers count its main memory from the beginning."""
    main.take_gpu(settings.model_copy(update={"run_memory_bytes": GIB // 4}))
    with database.snapshot() as session:
        assert session.scalars(select(Worker.run_memory)).all() == [GIB // 4]
