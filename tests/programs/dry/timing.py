# mypy: ignore-errors
import torch
from torch import nn

assert torch.cuda.is_available()
properties = torch.cuda.get_device_properties(0)
free, total = torch.cuda.mem_get_info()
print(properties.name, properties.total_memory == total, free <= total, torch.cuda.get_device_capability())
model = nn.MultiheadAttention(16, 4, batch_first=True).cuda()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
stream = torch.cuda.Stream()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
generator = torch.Generator(device="cuda").manual_seed(3)
for _ in range(3):
    start.record()
    with torch.cuda.stream(stream):
        host = torch.empty(2, 5, 16).pin_memory()
        host.normal_()
        x = host.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    x.record_stream(torch.cuda.current_stream())
    out, weights = model(x, x, x)
    loss = (out + torch.randn(out.shape, generator=generator, device="cuda")).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end.record()
    end.synchronize()
    print(start.elapsed_time(end) >= 0, torch.cuda.max_memory_allocated() > 0, weights.shape)
torch.cuda.reset_peak_memory_stats()
torch.cuda.empty_cache()
