"""The modules that carry the promises, each with the tests that hold it.

Only these tests are asked about a module's mutants, so that its statistics take a minute, and of
these only the ones that reach the mutant.
"""

EXPERIMENTS = "tests/service/experiments"
LEASE = tuple(
    f"{EXPERIMENTS}/test_{name}.py" for name in ("lease", "queue", "restored", "going_on")
)
DISPATCH = tuple(
    f"{EXPERIMENTS}/test_{name}.py" for name in ("dispatch", "queue", "memory", "fair_share")
)
KEYS = ("tests/service/test_whose_key.py", "tests/service/test_users.py")
CALLS = ("tests/mptlab/test_calls.py", "tests/mptlab/test_requests.py")
JUDGES = ("tests/mptcore/presets/test_judges.py", "tests/mptcore/presets/test_comparisons.py")

MODULES: dict[str, tuple[str, ...]] = {
    "service/experiments/states.py": ("tests/service/experiments/test_states.py",),
    "service/experiments/lease.py": LEASE,
    "service/experiments/recording.py": (
        "tests/service/experiments/test_recording.py",
        "tests/service/experiments/test_queue.py",
    ),
    "service/experiments/dispatch.py": DISPATCH,
    "service/experiments/store.py": ("tests/service/experiments/test_store.py",),
    "service/keys.py": KEYS,
    "service/users.py": KEYS,
    "worker/supervisor.py": ("tests/worker/test_supervision.py", "tests/worker/test_exits.py"),
    "mptlab/retries.py": ("tests/mptlab/test_pauses.py",),
    "mptlab/api.py": CALLS,
    "mptlab/connection.py": CALLS,
    "mptlab/places.py": ("tests/mptlab/test_places.py",),
    "mptlab/answers.py": ("tests/mptlab/test_requests.py",),
    "mptlab/tables.py": ("tests/mptlab/test_tables.py",),
    "mptcore/estimation/allocation.py": (
        "tests/mptcore/estimation/test_stratified.py",
        "tests/mptcore/estimation/test_allocation.py",
    ),
    "mptcore/estimation/estimate.py": (
        "tests/mptcore/estimation/test_estimate.py",
        "tests/mptcore/estimation/test_estimators.py",
    ),
    "mptcore/estimation/masks.py": ("tests/mptcore/estimation/test_masks.py",),
    "mptcore/estimation/permutations.py": ("tests/mptcore/estimation/test_masks.py",),
    "mptcore/estimation/scores.py": (
        "tests/mptcore/estimation/test_scores.py",
        "tests/mptcore/estimation/test_estimators.py",
    ),
    "mptcore/families/masked_lm/estimates.py": (
        "tests/mptcore/families/masked_lm/test_errors.py",
        "tests/mptcore/families/masked_lm/test_estimates.py",
    ),
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
