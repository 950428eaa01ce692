# mypy: ignore-errors
import os
import sys
import threading
import warnings

import torch

warnings.simplefilter("always")
print(threading.active_count(), sorted(sys.warnoptions), sys.flags.optimize, sorted(os.listdir("/proc/self/fd")))
print("sitecustomize" in sys.modules, os.environ.get("PYTHONPATH"), [one for one in os.environ if "GPUCHECK" in one])
print(sys.excepthook is sys.__excepthook__, sys.getrecursionlimit(), float(torch.ones(1, requires_grad=True)))
print([type(one).__name__ if not isinstance(one, type) else one.__name__ for one in sys.meta_path])
