# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Training has the same meaning as under DistributedDataParallel. Both train the same model from the same values in
the same processes, and at fidelity "exact" every parameter and buffer has the same bits on two ranks. The
scenarios are functions of a Job, in scenarios.py and parts.py."""

from __future__ import annotations

import unittest
from typing import Any

import ranks


def all_scenarios(*names: str) -> dict[str, Any]:
    """All of them, or those with these names."""
    import torch
    import torch.distributed as dist

    import parts
    import scenarios

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for name, scenario in {**scenarios.SCENARIOS, **parts.SCENARIOS}.items():
        if names and name not in names:
            continue
        try:
            results[name] = scenarios.compare(scenario)
        except Exception as error:  # in one scenario; the others continue if they can
            import traceback

            results[name] = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"}
    ranks.leave_group()
    return results


def on_both() -> list[float]:
    """The largest differences between training on the CPU and on the device, and between before and after it."""
    import torch
    import torch.distributed as dist

    import devices
    import scenarios

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    starts, ends = [], []
    for place in (torch.device("cpu"), devices.device()):
        torch.set_default_device(place)
        start, job = scenarios._run(scenarios.Scenario(scenarios.mlp, scenarios.plain), is_gradtune=True)
        starts.append([value.cpu() for value in start.values()])
        ends.append([value.detach().cpu() for value in job.model.parameters()])

    def largest(a: Any, b: Any) -> float:
        return max(float((one - other).abs().max()) for one, other in zip(a, b, strict=True))

    return [largest(*ends), largest(starts[1], ends[1])]


class Semantics(unittest.TestCase):
    @unittest.skipUnless(ranks.DEVICE == "fake", "a GPU computes other bits than the CPU")
    def test_the_device_comes_to_the_bits_of_the_cpu(self) -> None:
        for difference, moved in ranks.must_run(on_both):
            self.assertEqual(difference, 0)
            self.assertGreater(moved, 0)

    def test_each_scenario_comes_to_the_bits_of_ddp(self) -> None:
        results = ranks.must_run(all_scenarios, 2, limit_s=400)
        self.assertGreaterEqual(len(results[0]), 61)
        for name in results[0]:
            for rank, of_rank in enumerate(results):
                with self.subTest(scenario=name, rank=rank):
                    result = of_rank[name]
                    self.assertNotIn("error", result, result.get("error"))
                    self.assertLessEqual(result["difference"], result["allowed"], "to DDP")
                    self.assertEqual(result["between_ranks"], 0)
                    if result["own"] is not None and rank > 0:
                        self.assertGreater(result["own"], 0.01, "what is a rank's own is not rank 0's")
                    self.assertEqual(result["facts"], result["facts_of_ddp"], "what the scenario saw besides")
                    self.assertGreater(result["moved"], 0, "nothing was trained")

    def test_on_more_ranks_sums_differ_by_their_order_alone(self) -> None:
        """Gloo's order of additions depends on a number's place in a bucket, and buckets differ."""
        names = ["plain", "float64 parameters"]
        for of_rank in ranks.must_run(all_scenarios, 3, arguments=names):
            self.assertEqual(set(of_rank), set(names))
            for name, allowed in zip(names, (1e-6, 1e-14), strict=True):
                self.assertNotIn("error", of_rank[name], of_rank[name].get("error"))
                self.assertLessEqual(of_rank[name]["difference"], allowed)
                self.assertEqual(of_rank[name]["between_ranks"], 0)


if __name__ == "__main__":
    ranks.main()
