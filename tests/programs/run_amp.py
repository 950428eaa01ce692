# mypy: ignore-errors
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu")
for number in range(12):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(4, 8)).float().pow(2).mean() / 3
    scaler.scale(loss).backward()
    if number % 3 == 2:  # accumulation
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(round(loss.item(), 4))
