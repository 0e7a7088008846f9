"""`python -m benchmarks.calibration` prints the table of every module beside this one."""

import importlib
import pkgutil

import benchmarks.calibration


def main() -> None:
    for module in pkgutil.iter_modules(benchmarks.calibration.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"benchmarks.calibration.{module.name}").main()


if __name__ == "__main__":
    main()
