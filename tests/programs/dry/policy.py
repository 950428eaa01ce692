# mypy: ignore-errors
import random

import torch
from torch import nn
from torch.distributions import Categorical


class Walk:
    def reset(self):
        self.at = 0
        return [float(self.at), 1.0]

    def step(self, action):
        self.at += 1 if action else -1
        return [float(self.at), random.random()], -abs(self.at), abs(self.at) > 3


device = "cuda" if torch.cuda.is_available() else "cpu"
policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
world = Walk()
for episode in range(3):
    state, log_probs, rewards = world.reset(), [], []
    for _ in range(10):
        logits = policy(torch.tensor(state, dtype=torch.float32, device=device))
        chosen = Categorical(logits=logits)
        action = chosen.sample()
        log_probs.append(chosen.log_prob(action))
        state, reward, over = world.step(action.item())
        rewards.append(reward)
        if over:
            break
    returns = torch.tensor(rewards, dtype=torch.float32).flip(0).cumsum(0).flip(0).to(device)
    returns = (returns - returns.mean()) / (returns.std(unbiased=False) + 1e-6)
    loss = -(torch.stack(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, sum(rewards), loss.item())
