# mypy: ignore-errors
import multiprocessing
import pickle

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([index**2])


def work(number):
    return type(pickle.loads(pickle.dumps(Squares()))).__module__, number * 2


if __name__ == "__main__":
    for way in ("spawn", "fork"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(pool.map(work, range(3)))
        loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=way)
        print([batch.tolist() for batch in loader])
    print(pickle.dumps(Squares())[:60])
