# mypy: ignore-errors
import torch

generator, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
of_generator = torch.optim.Adam(generator.parameters())
of_critic = torch.optim.Adam(critic.parameters())
for _ in range(10):
    critic(generator(torch.ones(2, 4))).sum().backward()
    of_critic.step()
    of_generator.step()
