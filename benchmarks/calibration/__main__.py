"""`python -m benchmarks.calibration [NAME …]`: every module of the package, or those named."""

import importlib
import pkgutil
import sys

from benchmarks import calibration


def main() -> None:
    found = [module.name for module in pkgutil.iter_modules(calibration.__path__)]
    for name in sys.argv[1:] or [name for name in found if name != "__main__"]:
        print(f"\n{name}\n", flush=True)
        importlib.import_module(f"benchmarks.calibration.{name}").main()


if __name__ == "__main__":
    main()
