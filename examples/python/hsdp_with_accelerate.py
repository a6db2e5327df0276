# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune between the replicas that accelerate makes: torchrun --nproc-per-node 4 examples/python/hsdp_with_accelerate.py"""

import gradtune
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.parallelism_config import ParallelismConfig
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    parallelism_config=ParallelismConfig(dp_replicate_size=2, dp_shard_size=2),
    fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
loader = DataLoader(TensorDataset(torch.randn(512, 16), torch.randint(4, (512,))), batch_size=8)

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
replicas = gradtune.between_replicas(model)  # the recipe: this line

for inputs, targets in loader:
    with accelerator.accumulate(model):
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
accelerator.print(replicas.result())
replicas.close()
accelerator.end_training()
