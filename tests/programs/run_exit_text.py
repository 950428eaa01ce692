# mypy: ignore-errors
import atexit
import sys

import torch

atexit.register(print, "at exit", torch.ones(1).item())
sys.exit("a text goes to stderr")
