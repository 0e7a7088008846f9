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
API = ("tests/service/test_api.py", "tests/service/test_refused.py")
KEYS = ("tests/service/test_whose_key.py", "tests/service/test_users.py")
CALLS = ("tests/mptlab/test_calls.py", "tests/mptlab/test_requests.py")
LANGUAGE = ("tests/mptcore/families/masked_lm",)
ESTIMATION = ("tests/mptcore/estimation",)

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
    "mptlab/tables.py": ("tests/mptlab/test_tables.py",),
    "mptcore/estimation/allocation.py": ESTIMATION,
    "mptcore/estimation/estimate.py": ESTIMATION,
    "mptcore/estimation/masks.py": ESTIMATION,
    "mptcore/estimation/permutations.py": ESTIMATION,
    "mptcore/estimation/scores.py": ESTIMATION,
    "mptcore/families/masked_lm/estimates.py": LANGUAGE,
    "mptcore/families/masked_lm/trainer.py": LANGUAGE,
    "mptcore/presets/judges.py": ("tests/mptcore/presets",),
    "mptcore/presets/language_judges.py": ("tests/mptcore/presets",),
    "mptcore/runtime/checkpoint.py": ("tests/mptcore/runtime",),
    "mptcore/runtime/durable.py": ("tests/mptcore/runtime",),
    "mptcore/runtime/session.py": ("tests/mptcore/runtime",),
    "mptcore/training/step_masks.py": ("tests/mptcore/training", *LANGUAGE),
}
