# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The command-line program as its users call it.

usage: gradtune_test.py PROGRAM
"""
import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = ""


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.trace = Path(folder.name) / "trace.json"
        tensors = [{"name": f"t{i}", "numel": 1_000_000 if i % 3 else 500, "ready_us": 900 * i} for i in range(12)]
        self.trace.write_text(json.dumps({"model": "made up", "tensors": tensors}), encoding="utf-8")

    def replay(self, *arguments):
        done = run("replay", self.trace, "--json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_every_policy_covers_the_trace_and_auto_is_never_worse(self):
        ends = {}
        for policy in ["auto", "espresso", "mergecomp", "wfbp", "mgwfbp", "bytescheduler", "usbyte", "baseline", "exhaustive"]:
            for network in [["--intra", "pcie", "--two-level"], ["--intra", "nvl", "--machines", "4"]]:
                plan = self.replay("--policy", policy, "--compressor", "efsignsgd", *network)
                self.assertEqual(set(plan), {"time_ms", "planning_ms", "error_bound", "buckets"})
                ends[policy, network[1]] = plan["time_ms"]
                covered = [0] * 12
                for bucket in plan["buckets"]:
                    self.assertIn(bucket["option"], range(4))
                    for slice_ in bucket.get("slices", []):
                        covered[slice_["tensor"]] += slice_["length"] / (1_000_000 if slice_["tensor"] % 3 else 500)
                    if "slices" not in bucket:
                        for tensor in range(bucket["first"], bucket["last"] + 1):
                            covered[tensor] += 1
                self.assertEqual([round(part, 9) for part in covered], [1] * 12)
        for (policy, intra), end in ends.items():
            self.assertLessEqual(ends["exhaustive", intra], end * (1 + 1e-12) if policy != "mergecomp" else 1e9)
            self.assertLessEqual(ends["auto", intra], end * 1.01 if policy == "exhaustive" else end, policy)

    def test_the_error_bound_is_zero_where_the_search_is_exact_and_null_where_nothing_is_known(self):
        self.assertEqual(self.replay("--policy", "exhaustive")["error_bound"], 0)
        self.assertIsNone(self.replay("--policy", "espresso")["error_bound"])

    def test_a_cost_file_is_a_model_too_and_its_options_are_programs(self):
        rates = [{"kind": kind, "level": level, "message_us": 50, "wait_us": 20,
                  "byte_us": 0.01 if level != "intra" else 0.0005}
                 for kind in ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"] for level in ["flat", "intra", "inter"]]
        codec = {"codec": "topk:0.01", "place": "device", "use": 0, "encode": {"fixed_us": 5, "element_us": 0.0005},
                 "decode": {"fixed_us": 3, "element_us": 0.0001, "byte_us": 0.0005}}
        cost = self.trace.with_name("cost.json")
        cost.write_text(json.dumps({"schema": "gradtune.cost/5", "world_size": 8, "ranks_per_node": 2, "codecs": [codec],
                                    "cores": {"of_rank": 1, "computing": 1, "host_threads": 1},
                                    "scale": {"fixed_us": 1, "element_us": 0.0001}, "collectives": rates}), encoding="utf-8")
        ends = {policy: self.replay("--cost", cost, "--policy", policy) for policy in ["auto", "espresso", "mergecomp", "baseline"]}
        for policy, plan in ends.items():
            self.assertLessEqual(ends["auto"]["time_ms"], plan["time_ms"], policy)
        programs = {bucket["option"] for bucket in ends["auto"]["buckets"]}
        self.assertTrue(any("topk:0.01" in program and "@inter" in program for program in programs), programs)
        exact = self.replay("--cost", cost, "--fidelity", "exact")
        self.assertTrue(all("encode" not in bucket["option"] for bucket in exact["buckets"]))
        picture = self.trace.with_name("step.json")
        self.replay("--cost", cost, "--chrome", picture)
        events = json.loads(picture.read_text(encoding="utf-8"))["traceEvents"]
        self.assertTrue(any(event["name"].startswith("all_gather") for event in events))
        rows = {}
        for event in events:
            if event["ph"] == "X":
                rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        for spans in rows.values():
            spans.sort()
            self.assertTrue(all(end <= begin + 1e-6 for (_, end), (begin, _) in zip(spans, spans[1:])), spans)
        travels = [[event["id"] for event in events if event["ph"] == phase] for phase in "be"]
        self.assertTrue(travels[0])
        self.assertCountEqual(*travels)
        self.assertIn("by the executor's rules", run("replay", self.trace, "--cost", cost).stdout)
        flat = self.replay("--cost", cost, "--world-size", "64")
        self.assertTrue(all("@int" not in bucket["option"] for bucket in flat["buckets"]))

    def test_with_a_forward_pass_buckets_are_in_the_order_sent_and_the_time_is_that_of_their_replay(self):
        tensors = json.loads(self.trace.read_text(encoding="utf-8"))["tensors"]
        ready = [tensor["ready_us"] for tensor in tensors]
        after = [0.5 * at for at in ready]  # forward from the tensor's read on
        for policy in ["auto", "usbyte", "bytescheduler", "wfbp", "mgwfbp", "baseline", "mergecomp", "espresso"]:
            plan = self.replay("--cost", "linear:100:2.5", "--forward", "0.5", "--policy", policy)
            self.assertEqual(list(plan), ["time_ms", "planning_ms", "buckets"])
            is_late = policy in ["auto", "usbyte", "bytescheduler"]
            now, end, slices = 0, 1.5 * ready[-1], []
            for bucket in plan["buckets"]:
                self.assertEqual(list(bucket), ["slices"])
                now = max(now, *(ready[part["tensor"]] for part in bucket["slices"]), 0)
                now += 100 + 2.5e-3 * sum(part["length"] for part in bucket["slices"])
                for part in bucket["slices"]:
                    end = max(end, now + (after[part["tensor"]] if is_late else after[-1]))
                    slices.append((part["tensor"], part["offset"], part["length"]))
            self.assertAlmostEqual(plan["time_ms"], end * 1e-3, 6)
            begun = [0] * len(tensors)
            for tensor, offset, length in sorted(slices):
                self.assertEqual(offset, begun[tensor])
                begun[tensor] += length
            self.assertEqual(begun, [tensor["numel"] for tensor in tensors])

    def test_the_table_is_for_people(self):
        done = run("replay", self.trace)
        self.assertEqual(done.returncode, 0)
        self.assertIn("made up: 12 tensors", done.stdout)
        self.assertIn("policy auto:", done.stdout)

    def test_what_is_wrong_is_named(self):
        for arguments, code, said in [
            (["replay", self.trace, "--policy", "best"], 1, "known are auto, espresso, mergecomp, wfbp, mgwfbp, bytescheduler, usbyte, baseline, exhaustive"),
            (["replay", self.trace, "--compressor", "zip"], 1, "known are randomk, dgc, efsignsgd, onebit"),
            (["replay", self.trace.with_name("none.json")], 1, "none.json"),
            (["replay", self.trace, "--cost", "linear:5"], 1, "linear:5 is not linear:A_US:B_NS"),
            (["replay", self.trace, "--cost", "linear:5:-1"], 1, "linear:5:-1 is not linear:A_US:B_NS"),
            (["replay", self.trace, "--cost", "linear:5:1x"], 1, "linear:5:1x is not linear:A_US:B_NS"),
            (["replay", self.trace, "--forward", "-1"], 2, "--forward"),
            (["replay", self.trace, "--forward", "1", "--policy", "exhaustive"], 1, "not with the next forward pass"),
            (["replay"], 2, "trace is required"),
            (["replay", self.trace, "--cost", self.trace.with_name("other")], 1, "other"),
            (["replay", self.trace, "--cost", self.trace], 1, "trace.json: cost: the key \"model\" is unknown"),
            (["replay", self.trace, "--cost", "c", "--world-size", "8", "--ranks-per-node", "3"], 2, "does not divide"),
            (["replay", self.trace, "--world-size", "8"], 2, "--world-size needs --cost FILE"),
            (["replay", self.trace, "--chrome", "step.json"], 2, "--chrome needs --cost FILE"),
            (["plan"], 2, "subcommand"),
        ]:
            done = run(*arguments)
            self.assertEqual(done.returncode, code, arguments)
            self.assertEqual(done.stdout, "")
            self.assertIn(said, done.stderr)
        self.trace.write_text('{"model": "m", "tensors": [{"name": "a", "numel": 1}]}', encoding="utf-8")
        done = run("replay", self.trace)
        self.assertEqual(done.returncode, 1)
        self.assertIn("trace.json: trace.tensors[0]: the key \"ready_us\" is missing", done.stderr)


class Trace(unittest.TestCase):
    JOURNAL = Path(__file__).resolve().parents[1] / "golden" / "journals" / "half_1gbit.jsonl"

    def test_a_journal_becomes_a_trace_that_can_be_planned_for(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            done = run("trace", self.JOURNAL, "-o", trace)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            tensors = json.loads(trace.read_text(encoding="utf-8"))["tensors"]
            self.assertEqual(sum(math.prod(tensor["shape"]) for tensor in tensors), 8_551_818)
            self.assertTrue(all(len(tensor["shape"]) in (1, 2, 4) for tensor in tensors), "as the model has them")
            self.assertEqual(tensors, sorted(tensors, key=lambda tensor: tensor["ready_us"]))
            done = run("replay", trace, "--json")
            self.assertEqual(done.returncode, 0)
            self.assertGreater(json.loads(done.stdout)["time_ms"], tensors[-1]["ready_us"] * 1e-3)

    def test_what_is_wrong_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = Path(folder) / "journal.jsonl"
            broken.write_text("{}\n", encoding="utf-8")
            done = run("trace", broken, "-o", Path(folder) / "trace.json")
            self.assertEqual(done.returncode, 1)
            self.assertIn("journal.jsonl: line 1: the key \"schema\" is missing", done.stderr)
            self.assertFalse((Path(folder) / "trace.json").exists())
            done = run("trace", self.JOURNAL, "-o", Path(folder) / "no" / "trace.json")
            self.assertEqual(done.returncode, 1)
            self.assertIn("no/trace.json", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
