# mypy: ignore-errors
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"x": torch.full((4,), float(index)), "y": index * index, "name": f"row {index}"}


def together(rows):
    return {
        "x": torch.stack([row["x"] for row in rows]),
        "y": torch.tensor([row["y"] for row in rows], dtype=torch.float32),
        "name": [row["name"] for row in rows],
    }


def main():
    torch.cuda.manual_seed_all(1)
    device = torch.device("cuda")
    train = DataLoader(Squares(), 8, shuffle=True, num_workers=2, pin_memory=True, collate_fn=together)
    test = DataLoader(Squares(), 8, num_workers=1, collate_fn=together)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for _ in range(1):
        model.train()
        for batch in train:
            x, y = batch["x"].to(device, non_blocking=True), batch["y"].to(device, non_blocking=True)
            loss = nn.functional.huber_loss(model(x).squeeze(-1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        total = 0.0
        with torch.inference_mode():
            for batch in test:
                total += nn.functional.mse_loss(model(batch["x"].cuda())[:, 0], batch["y"].cuda()).item()
        plateau.step(total)
        print(total > 0)


if __name__ == "__main__":
    main()
