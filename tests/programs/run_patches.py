# mypy: ignore-errors
import threading

import torch

original = torch.Tensor.item


def item(self):
    return original(self) * 2


torch.Tensor.item = item
print(torch.ones(1).item(), threading.active_count(), torch.Tensor.cpu.__name__, torch.Tensor.to.__qualname__)
torch.Tensor.to = lambda self, *args, **kwargs: self
print(torch.ones(1).to("nowhere"), repr(torch.ones(1)), f"{torch.ones(1).squeeze():.2f}")


class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        print(getattr(func, "__name__", func))
        return super().__torch_function__(func, types, args, kwargs or {})


print(torch.ones(1).as_subclass(Own).tolist())
