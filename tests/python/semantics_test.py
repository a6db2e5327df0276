# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""What training means stays what it is under DistributedDataParallel: both train the same model from the same values in
the same processes, and at fidelity "exact" every parameter and buffer comes to the same bits. The scenarios are
functions of a Job, in scenarios.py."""

from __future__ import annotations

import unittest
from typing import Any

import ranks


def all_scenarios() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    import scenarios

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for name, scenario in scenarios.SCENARIOS.items():
        try:
            results[name] = scenarios.compare(scenario)
        except Exception as error:  # of one scenario; the others go on where they can
            import traceback

            results[name] = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"}
    dist.destroy_process_group()
    return results


class Semantics(unittest.TestCase):
    def test_each_scenario_comes_to_the_bits_of_ddp(self) -> None:
        results = ranks.must_run(all_scenarios, 2, limit_s=400)
        self.assertGreater(len(results[0]), 20)
        for name in results[0]:
            for rank, of_rank in enumerate(results):
                with self.subTest(scenario=name, rank=rank):
                    result = of_rank[name]
                    self.assertNotIn("error", result, result.get("error"))
                    self.assertLessEqual(result["difference"], result["allowed"], "to DDP")
                    self.assertEqual(result["between_ranks"], 0)
                    self.assertEqual(result["facts"], result["facts_of_ddp"], "what the scenario saw besides")
                    self.assertGreater(result["moved"], 0, "nothing was trained")


if __name__ == "__main__":
    ranks.main()
