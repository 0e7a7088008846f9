"""Every matter of the package, one after the other: `python -m benchmarks.calibration [NAME …]`."""

import importlib
import pkgutil
import sys

from benchmarks import calibration

names = sys.argv[1:] or sorted(module.name for module in pkgutil.iter_modules(calibration.__path__))
for name in names:
    if name != "__main__":
        importlib.import_module(f"benchmarks.calibration.{name}").main()
