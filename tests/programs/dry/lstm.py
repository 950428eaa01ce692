# mypy: ignore-errors
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 4)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (hidden, _) = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.head(out), hidden


device = "cuda"
model = Tagger().to(device)
optimizer = torch.optim.RMSprop(model.parameters())
for _ in range(3):
    texts = [torch.randint(1, 20, (length,)) for length in (7, 4, 2)]
    lengths = torch.tensor([len(text) for text in texts])
    ids = pad_sequence(texts, batch_first=True).to(device)
    out, hidden = model(ids, lengths)
    loss = nn.functional.cross_entropy(out.transpose(1, 2), ids % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), hidden.shape)
