"""All modules that `make mutants` changes, each with the tests that are asked.

The tests of `mptcore/data/texts.py` are the files of `tests/mptcore/data`: the folder at the same
place, or the nearest one above it that has tests. `NARROWER` names fewer, or others, where these
take too long or are elsewhere. Of a module's tests only those run that reach the mutant.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mptcore", "service", "worker", "mptlab")

LEFT_OUT = {
    "mptcore/presets/__init__.py": "it runs at import, before a mutant is chosen",
    "mptcore/presets/language.py": "it runs at import, before a mutant is chosen",
}
"""Modules with functions that are not asked about, and the reason."""

EXPERIMENTS = "tests/service/experiments"
QUEUE = "tests/service/queue"
LEASE = tuple(f"{QUEUE}/test_{name}.py" for name in ("lease", "queue", "restored", "going_on"))
CLAIMS = tuple(
    f"{QUEUE}/test_{name}.py" for name in ("claims", "queue", "memory", "rooms", "fair_share")
)
KEYS = ("tests/service/accounts/test_whose_key.py", "tests/service/accounts/test_users.py")
SIGN_INS = ("tests/service/ui/test_sign_in.py",)
WEBHOOKS = ("tests/service/webhooks", "tests/worker/test_messenger.py")
CURVES = (
    "tests/service/records/test_curves.py",
    "tests/service/curves/test_formats.py",
    "tests/service/records/test_many_curves.py",
)
SUBMISSIONS = (
    "tests/service/submission",
    "tests/service/sweeps",
    *(f"{EXPERIMENTS}/test_{name}.py" for name in ("store", "after", "cache", "kept_bytes")),
)
CALLS = ("tests/mptlab/test_calls.py", "tests/mptlab/test_requests.py")
JUDGES = ("tests/mptcore/presets/test_judges.py", "tests/mptcore/presets/test_comparisons.py")

NARROWER: dict[str, tuple[str, ...]] = {
    "service/queue/states.py": ("tests/service/queue/test_states.py",),
    "service/queue/clock.py": ("tests/worker/test_controller.py",),
    "service/queue/holds.py": (
        *(f"{QUEUE}/test_{name}.py" for name in ("holds", "states", "queue")),
        f"{EXPERIMENTS}/test_after.py",
        "tests/service/sweeps/test_sweeps.py",
    ),
    "service/queue/quota.py": (
        f"{EXPERIMENTS}/test_kept_bytes.py",
        "tests/service/datasets/test_quota.py",
        "tests/service/accounts/test_users.py",
    ),
    "service/queue/sizes.py": (f"{EXPERIMENTS}/test_kept_bytes.py",),
    "service/queue/rooms.py": tuple(f"{QUEUE}/test_{name}.py" for name in ("rooms", "memory")),
    "service/queue/workers.py": (
        *(f"{QUEUE}/test_{name}.py" for name in ("memory", "position", "claims")),
        "tests/service/web/test_monitoring.py",
        "tests/worker/test_gpu_assignment.py",
        "tests/worker/test_presence.py",
        "tests/worker/test_controller.py",
    ),
    "service/queue/statistics.py": ("tests/service/queue/test_statistics.py",),
    "service/queue/lease.py": (*LEASE, f"{EXPERIMENTS}/test_kept_bytes.py"),
    "service/records/recording.py": (
        "tests/service/records/test_recording.py",
        "tests/service/queue/test_queue.py",
    ),
    "service/queue/claims.py": CLAIMS,
    "service/experiments/store.py": tuple(
        f"{EXPERIMENTS}/test_{name}.py"
        for name in ("store", "many_experiments", "deletion", "kept_bytes")
    ),
    "service/submission/submit.py": SUBMISSIONS,
    "service/submission/preparation.py": SUBMISSIONS,
    "service/submission/requests.py": SUBMISSIONS,
    "service/submission/idempotency.py": SUBMISSIONS,
    "service/accounts/keys.py": KEYS,
    "service/accounts/users.py": KEYS,
    "service/web/access_log.py": ("tests/service/test_logs.py",),
    "service/accounts/accounts.py": (
        "tests/service/accounts/test_users.py",
        "tests/service/web/test_matrix.py",
    ),
    "service/accounts/routes.py": (
        "tests/service/accounts/test_users.py",
        "tests/service/accounts/test_audit.py",
    ),
    "service/presets/runs.py": ("tests/service/presets/test_presets.py",),
    "service/experiments/references.py": (
        f"{EXPERIMENTS}/test_references.py",
        f"{EXPERIMENTS}/test_cache.py",
        "tests/worker/test_attempts.py",
        "tests/service/datasets/test_uploads.py",
    ),
    "service/fair_share.py": ("tests/service/queue/test_ledger.py",),
    "service/places.py": ("tests/service/test_places.py",),
    "service/refusals.py": (
        "tests/service/web/test_many_errors.py",
        "tests/service/web/test_refused.py",
        "tests/service/datasets/test_uploads.py",
    ),
    "service/db/revisions.py": ("tests/service/operations/test_start.py",),
    "service/settings.py": (
        "tests/service/test_secrets.py",
        "tests/service/operations/test_backup.py",
        "tests/worker/test_attempts.py",
    ),
    "service/accounts/audit.py": ("tests/service/accounts/test_audit.py",),
    "service/operations/retention.py": (
        f"{EXPERIMENTS}/test_deletion.py",
        f"{EXPERIMENTS}/test_kept_bytes.py",
    ),
    "service/operations/backup.py": ("tests/service/operations/test_backup.py",),
    "service/db/engine.py": (
        "tests/service/db/test_engine.py",
        "tests/service/operations/test_start.py",
        "tests/service/queue/test_memory.py",
    ),
    "service/web/csrf.py": SIGN_INS,
    "service/web/errors.py": (
        *(f"tests/service/web/test_{name}.py" for name in ("many_errors", "refused", "messages")),
        "tests/service/web/test_bad_input.py",
        "tests/service/datasets/test_uploads.py",
        "tests/service/operations/test_start.py",
        "tests/service/db/test_engine.py",
    ),
    "service/accounts/permissions.py": (
        *SIGN_INS,
        "tests/service/accounts/test_sharing.py",
        "tests/service/datasets/test_datasets.py",
    ),
    "service/accounts/sign_ins.py": SIGN_INS,
    "service/accounts/sign_in_routes.py": SIGN_INS,
    "service/records/artifacts.py": ("tests/worker/test_attempts.py",),
    "service/records/results.py": (
        f"{EXPERIMENTS}/test_bundle.py",
        f"{EXPERIMENTS}/test_many_experiments.py",
        "tests/service/records/test_logs.py",
    ),
    "service/records/stored_records.py": (f"{EXPERIMENTS}/test_bundle.py",),
    "service/records/spreadsheets.py": ("tests/service/records/test_spreadsheets.py",),
    "service/experiments/bundle.py": (f"{EXPERIMENTS}/test_bundle.py",),
    "service/curves/routes.py": CURVES,
    "service/records/curves.py": CURVES,
    "service/curves/formats.py": CURVES,
    "service/records/selection.py": CURVES,
    "service/records/downsampling.py": ("tests/service/records/test_downsampling.py",),
    "service/experiments/views.py": (
        f"{EXPERIMENTS}/test_store.py",
        "tests/service/web/test_api.py",
    ),
    "service/experiments/listing.py": (f"{EXPERIMENTS}/test_listing.py",),
    "service/web/listing_parameters.py": (f"{EXPERIMENTS}/test_listing.py",),
    "worker/messenger.py": WEBHOOKS,
    "service/webhooks/resolving.py": WEBHOOKS,
    "service/webhooks/routes.py": WEBHOOKS,
    "service/webhooks/sending.py": WEBHOOKS,
    "service/webhooks/store.py": WEBHOOKS,
    "worker/gpus.py": ("tests/worker/test_gpu_assignment.py",),
    "worker/memory.py": ("tests/worker/test_memory.py",),
    "worker/main.py": tuple(
        f"tests/worker/test_{name}.py" for name in ("main", "gpu_assignment", "unusable_gpu")
    ),
    "worker/eta.py": ("tests/worker/test_eta.py",),
    "worker/presence.py": (
        "tests/worker/test_presence.py",
        "tests/worker/test_memory.py",
        "tests/service/queue/test_worker_samples.py",
    ),
    "worker/supervisor.py": (
        "tests/worker/test_supervisor_decisions.py",
        "tests/worker/test_exits.py",
    ),
    "worker/warm_parent.py": ("tests/worker/test_children.py",),
    "mptcore/data/upload_limits.py": ("tests/mptcore/data/test_upload_limits.py",),
    "mptcore/runtime/cgroups.py": ("tests/mptcore/runtime/test_cgroups.py",),
    "mptcore/specs/experiment.py": ("tests/mptcore/specs/test_points.py",),
    "service/datasets/child_environment.py": ("tests/service/datasets/test_child_environment.py",),
    "mptlab/retries.py": ("tests/mptlab/test_pauses.py",),
    "mptlab/api.py": CALLS,
    "mptlab/connection.py": CALLS,
    "mptlab/demo.py": ("tests/mptlab/test_demo.py",),
    "mptlab/serve.py": ("tests/mptlab/test_serve.py",),
    "mptlab/places.py": ("tests/mptlab/test_places.py",),
    "mptlab/tables.py": ("tests/mptlab/test_tables.py",),
    "mptcore/estimation/allocation.py": (
        "tests/mptcore/estimation/test_stratified.py",
        "tests/mptcore/estimation/test_allocation.py",
    ),
    "mptcore/estimation/rounds.py": (
        "tests/mptcore/estimation/test_single_scores.py",
        "tests/mptcore/estimation/test_allocation.py",
        "tests/mptcore/estimation/test_evaluate.py",
    ),
    "mptcore/estimation/single_scores.py": ("tests/mptcore/estimation/test_single_scores.py",),
    "mptcore/estimation/estimate.py": (
        "tests/mptcore/estimation/test_estimate.py",
        "tests/mptcore/estimation/test_estimators.py",
    ),
    "mptcore/estimation/masks.py": ("tests/mptcore/estimation/test_masks.py",),
    "mptcore/estimation/permutations.py": ("tests/mptcore/estimation/test_masks.py",),
    "mptcore/estimation/random_numbers.py": ("tests/mptcore/estimation/test_random_numbers.py",),
    "mptcore/estimation/scores.py": (
        "tests/mptcore/estimation/test_scores.py",
        "tests/mptcore/estimation/test_estimators.py",
    ),
    "mptcore/families/masked_lm/estimates.py": (
        "tests/mptcore/families/masked_lm/test_errors.py",
        "tests/mptcore/families/masked_lm/test_estimates.py",
    ),
    **{
        f"mptcore/families/masked_lm/text_{name}.py": (
            "tests/mptcore/families/masked_lm/test_text_fit.py",
            "tests/mptcore/families/masked_lm/test_text_scores.py",
            "tests/mptcore/families/masked_lm/test_text_shared.py",
        )
        for name in ("fit", "rounds", "cumulative", "shared")
    },
    "mptcore/families/masked_lm/trainer.py": (
        "tests/mptcore/families/masked_lm/test_trainer.py",
        "tests/mptcore/families/masked_lm/test_advance.py",
    ),
    "mptcore/presets/judges.py": JUDGES,
    "mptcore/presets/language_judges.py": JUDGES,
    "mptcore/runtime/checkpoint.py": ("tests/mptcore/runtime/test_saved.py",),
    "mptcore/runtime/durable.py": ("tests/mptcore/runtime/test_durable.py",),
    "mptcore/runtime/session.py": ("tests/mptcore/runtime/test_session.py",),
    "mptcore/training/step_masks.py": ("tests/mptcore/training/test_step_masks.py",),
}

ELSEWHERE = {"mptcore/specs/": "tests/mptcore/families/*/test_refused_specs.py"}
"""Tests that are asked too, for all modules below a folder."""

NOT_ASKED = {
    "tests/mptlab/test_distribution.py": "it reads source files, which are other ones for mutants",
    "tests/mptlab/test_cli.py": "it starts labs: test_commands.py reaches the same functions",
    "tests/mptlab/test_demo.py": "it starts a lab, for mptlab/demo.py alone",
    "tests/mptlab/test_retries.py": "it kills servers: test_pauses.py reaches the same functions",
    "tests/mptlab/test_serve.py": "it starts labs, for mptlab/serve.py alone",
}
"""Tests of a folder that are not asked about its modules, and the reason."""


def folder_of_tests(module: str) -> str:
    """Return the test folder that is at the same place as a module, or the nearest above it."""
    folder = Path("tests", module).parent
    while not any((ROOT / folder).glob("test_*.py")):
        folder = folder.parent
    return folder.as_posix()


def _modules() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        module = file.relative_to(ROOT).as_posix()
        if module not in LEFT_OUT and "def " in file.read_text():
            found[module] = NARROWER.get(module) or _tests_of(module)
    return found


def _tests_of(module: str) -> tuple[str, ...]:
    patterns = [f"{folder_of_tests(module)}/test_*.py"]
    patterns += [tests for folder, tests in ELSEWHERE.items() if module.startswith(folder)]
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    return tuple(sorted({file.relative_to(ROOT).as_posix() for file in files} - NOT_ASKED.keys()))


MODULES = _modules()
