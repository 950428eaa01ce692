# mypy: ignore-errors
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.conv2(x)), 1)
        return self.head(self.drop(x.flatten(1)))


device = "cuda"
torch.backends.cudnn.benchmark = True
model = Net().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
for step in range(4):
    x = torch.randn(4, 3, 16, 16).cuda(non_blocking=True).to(memory_format=torch.channels_last)
    y = torch.randint(10, (4,)).cuda()
    out = model(x)
    loss = F.cross_entropy(out, y, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    accuracy = (out.argmax(1) == y).float().mean().item()
    print(step, round(accuracy, 2), scheduler.get_last_lr())
model.eval()
with torch.no_grad():
    print(model(torch.zeros(1, 3, 16, 16, device=device)).shape)
