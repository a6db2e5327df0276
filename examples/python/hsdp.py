# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune between the replicas of FSDP2: torchrun --nproc-per-node 4 examples/python/hsdp.py

With two machines of two ranks, the replicas are the machines, and gradtune carries all that goes between them."""

import gradtune
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
replicas = gradtune.between_replicas(model, fidelity="half")  # the recipe: this line
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

torch.manual_seed(dist.get_rank())
for _ in range(20):
    for micro_batch in range(2):
        model.set_requires_all_reduce(micro_batch == 1)  # between replicas once a step
        inputs = torch.randn(8, 16)
        torch.nn.functional.mse_loss(model(inputs), inputs.roll(1, dims=1)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

total = torch.cat([p.to_local().detach().flatten() for p in model.parameters()])
both = [torch.empty_like(total) for _ in range(2)]
dist.all_gather(both, total, group=mesh["replica"].get_group())
assert torch.equal(*both), "replicas drifted apart"
if dist.get_rank() == 0:
    print(replicas.result())
replicas.close()
dist.destroy_process_group()
