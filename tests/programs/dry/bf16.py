# mypy: ignore-errors
import torch
from torch import nn

torch.set_float32_matmul_precision("high")
torch.set_default_device("cuda")
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
head = nn.Linear(32, 7)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
for _ in range(3):
    x = torch.randn(2, 9, 32)
    y = torch.randint(7, (2, 9))
    with torch.autocast("cuda", torch.bfloat16):
        out = head(model(x, mask=nn.Transformer.generate_square_subsequent_mask(9), is_causal=True))
        loss = nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{loss:.2f}", loss.device)
