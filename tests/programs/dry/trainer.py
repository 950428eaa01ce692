# mypy: ignore-errors
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
rows = [{"input_ids": torch.randint(50, (8,)), "labels": i % 2} for i in range(16)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, per_device_train_batch_size=4, num_train_epochs=1, report_to=[])
    Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows).train()
