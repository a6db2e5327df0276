# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Training in rounds between two sites. On one machine: torchrun --nproc-per-node 2 examples/python/two_sites.py

Over a slow or long link, each site makes a few updates of its own between two exchanges. On two machines, run this on both:

    torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 examples/python/two_sites.py --dense-steps 80

To see such a link on one machine:

    examples/cluster --nodes 2 --rate 20mbit --delay 25ms -- python examples/python/two_sites.py --steps 2000
"""

import argparse

import gradtune
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--dense-steps", type=int, default=20, help="synchronous steps before the first round")
steps, dense_steps = (vars(parser.parse_args())[name] for name in ("steps", "dense_steps"))

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
adamw = torch.optim.AdamW(model.parameters(), 1e-3)
# The recipe: this line, and end_round() at the end.
optimizer = gradtune.rounds(adamw, model, most=8, dense_steps=dense_steps, fidelity="lossy")

torch.manual_seed(1 + dist.get_rank())
for _ in range(steps):
    inputs = torch.randn(32, 64)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), inputs.roll(1, dims=1)).backward()
    optimizer.step()
optimizer.end_round()

flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
sites = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
dist.all_gather(sites, flat)
assert all(torch.equal(site, flat) for site in sites), "sites drifted apart"
if dist.get_rank() == 0:
    print(optimizer.round_progress())
    print(optimizer.result())
optimizer.close()
dist.destroy_process_group()
