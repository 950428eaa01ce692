# mypy: ignore-errors
import argparse
import sys

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, required=True)
parser.add_argument("rest", nargs="*")
print(parser.parse_args())
print(sys.argv, sys.path[0], __file__, __name__, __spec__, __package__, torch.ones(2).sum().item())
