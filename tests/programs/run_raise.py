# mypy: ignore-errors
import torch


def inner():
    # Raised inside functions that are measured: none of their frames may be seen.
    torch.ones(2).item()


try:
    inner()
except RuntimeError:
    import traceback

    traceback.print_exc()


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise KeyError(index)


try:
    next(iter(torch.utils.data.DataLoader(Broken())))
except KeyError:
    traceback.print_exc()
try:
    torch.ones(2).backward()
except RuntimeError:
    traceback.print_exc()
torch.ones(2).to("no such device")
