# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune under accelerate: torchrun --nproc-per-node 2 examples/python/with_accelerate.py"""

import gradtune
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=50)
loader = DataLoader(TensorDataset(torch.randn(512, 16), torch.randint(4, (512,))), batch_size=8)

# --- the recipe: placement and autocast by accelerate, without DistributedDataParallel
model = accelerator.prepare_model(model, evaluation_mode=True)
optimizer = gradtune.wrap(optimizer, model)
model.no_sync = optimizer.no_sync  # accelerator.accumulate() uses it
optimizer, loader, scheduler = accelerator.prepare(optimizer, loader, scheduler)
# ---

for inputs, targets in loader:
    with accelerator.accumulate(model):
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
total = torch.cat([p.detach().flatten() for p in model.parameters()])
assert torch.equal(*accelerator.gather(total[None]).unbind()), "ranks drifted apart"
accelerator.print(optimizer.optimizer.result())
