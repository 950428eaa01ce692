# mypy: ignore-errors
import time

import torch


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.randn(4)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Slow(), num_workers=1):
        model(batch).sum().backward()
        optimizer.step()
