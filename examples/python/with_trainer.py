# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune under Hugging Face's Trainer: torchrun --nproc-per-node 2 examples/python/with_trainer.py"""

import tempfile

import gradtune.for_transformers
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def forward(self, inputs, labels):
        logits = self.layers(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Points(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        inputs = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return {"inputs": inputs, "labels": int(inputs[:4].argmax())}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=20,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        logging_steps=10,
        ddp_backend="gloo",
    )
    torch.manual_seed(0)
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Points())
    gradtune.for_transformers.attach(trainer)  # the recipe: the one call
    trainer.train()
    total = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    assert torch.equal(*trainer.accelerator.gather(total[None]).unbind()), "ranks drifted apart"
    trainer.accelerator.print(trainer.optimizer.optimizer.result())
