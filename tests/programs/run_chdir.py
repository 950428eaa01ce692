# mypy: ignore-errors
import os
import sys
import tempfile

import torch

os.chdir(tempfile.gettempdir())
torch.save({"weights": torch.arange(4)}, os.path.join(sys.argv[1], "saved.pt"))
with open(os.path.join(sys.argv[1], "text"), "w") as file:
    print(torch.arange(3), file=file)
print(sys.stdin.read())
os.close(1)
