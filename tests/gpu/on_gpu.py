#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Runs everything that needs a GPU, one step after the other within ten minutes, for `./run gpu`.

usage: on_gpu.py [--minutes 9.5] [--only STEP,...] PROGRAMS RESULTS

PROGRAMS: the folder that `./run gpu pack` fills. RESULTS: a folder for the logs, one a step, benchmarks' JSON files,
and summary.json. The summary says for each step if it passed, failed, ran out of time or was not run, and why. The
most important steps come first. A failed step does not keep the others from running. A call leaves out the steps that
passed in a former call with the same RESULTS, unless --only names them. The exit code is 0 if all steps passed.
"""
import argparse
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in the source tree
ROOT = Path(__file__).resolve().parents[2]
BENCH, GPU = ROOT / "tests" / "bench", ROOT / "tests" / "gpu"

# NCCL refuses ranks of one host that share a GPU. It takes ranks for ranks of several nodes if each has another
# NCCL_HOSTID, which the ranks set themselves, and connects them by sockets. Their kernels take turns on the GPU, so one
# channel is enough.
SHARED_GPU = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
              "NCCL_SHM_DISABLE": "1", "NCCL_MAX_NCHANNELS": "1"}

# The compressors for sanitizers: one for each source of kernels (engine/compress).
SANITIZED = {"block_codes": "int8_256", "dense": "none", "int_packed": "int4packed_256", "packed": "packed",
             "powersgd": "powersgd_4", "randk": "randk_0_1", "signs": "efsignsgd_64", "sparse": "rows", "thc": "thc_30",
             "topk": "topk_0_02"}


def steps(programs, results):
    """Each step: its name, its time limit in seconds, and its command."""
    python = sys.executable
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    yield "machine", 30, ["nvidia-smi"]
    yield "device", 30, [programs / "gpu_device_test"]
    yield "step_kernels", 60, [programs / "gpu_step_kernels_test"]
    yield "compressors", 120, [programs / "gpu_compressors_test"]
    yield "package", 150, [python, GPU / "package.py", programs]
    yield "nccl", 120, [programs / "gpu_training_test", "--gtest_filter=GpuNccl.*"]
    yield "python", 180, [python, GPU / "python_tables.py", "gloo"]
    yield "gpt2", 150, [python, BENCH / "gpt2.py", "--links", "none", results / "gpt2.json"]
    yield "python_nccl", 180, [python, GPU / "python_tables.py", "nccl"]
    yield "training", 150, [programs / "gpu_training_test", "--gtest_filter=GpuTraining.*"]
    yield "gpt2_10gbit", 240, [python, BENCH / "gpt2.py", "--links", "10gbit", results / "gpt2-10gbit.json"]
    yield "compress_device", 150, [programs / "bench_compress_device", programs, results / "compress_device.json"]
    yield "compress_torch", 60, [python, BENCH / "compress_torch.py", results / "compress_device.json",
                                 results / "compress_torch.json"]
    tests = [f"*InTheMiddleOfTraining/{spec}" for spec in SANITIZED.values()] + ["*several_buckets*/int4_64"]
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        yield tool, 40, [sanitizer, "--tool", tool, "--error-exitcode", "3", programs / "gpu_compressors_test",
                         "--gtest_filter=" + ":".join(tests)]
    # On an H200 the first two rates take about 350 s. Rows are written after each rate, so the last one may be cut
    # off.
    yield "train_device", 400, [python, BENCH / "train_device.py", "--rates", "25000,1000,5000", "--fidelities", "lossy", "--steps",
                                "7", "--tuning", "150", programs, results / "train_device.json"]


def environment(programs):
    """Libraries are those beside the programs, and those of this Python's torch; the package is that of package.py."""
    folders = [programs / "lib"]
    for packages in [*site.getsitepackages(), *(path for path in sys.path if path.endswith("site-packages"))]:
        folders += [Path(packages) / "torch" / "lib", *sorted(Path(packages).glob("nvidia/*/lib"))]
    known = [str(folder) for folder in folders if folder.is_dir()]
    return {**os.environ, **SHARED_GPU, "LD_LIBRARY_PATH": ":".join(dict.fromkeys(known)), "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(programs / "package"),
            "PATH": f"{os.environ.get('PATH', os.defpath)}:{programs / 'tools'}"}


def run(command, seconds, log, env):
    """The outcome, in a few words."""
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, env=env,
                                       start_new_session=True)
        except OSError as error:
            return f"not run: {error}"
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and the ranks that it started
            process.wait()
            return f"ran out of time after {seconds:.0f} s"
    if status != 0:
        return f"failed with status {status}"
    return "failed: a test was skipped" if b"[  SKIPPED ]" in log.read_bytes() else "passed"


def name_device(results):
    """Names the GPU in the results of benchmarks."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                              check=False)
    except OSError:
        return
    for path in results.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        if '"run":{"' in text and '"device":' not in text:
            path.write_text(text.replace('"run":{', '"run":{"device":' + json.dumps(said.stdout.strip()) + ",", 1), encoding="utf-8")


def former(results):
    """The summary of former calls; empty if there was none."""
    path = results / "summary.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def wanted(all_steps, only, results):
    """The named steps, or all that did not pass in a former call."""
    if only:
        return [step for step in all_steps if step[0] in only]
    passed = {name for name, step in former(results).items() if step["ended"] == "passed"}
    return [step for step in all_steps if step[0] not in passed]


def run_all(asked, results, seconds_for_all, env):
    """Returns 0 if all passed. Steps are tuples of name, seconds and command."""
    deadline = time.monotonic() + seconds_for_all
    summary = former(results)
    for name, seconds, command in asked:
        left = deadline - time.monotonic()
        begin = time.monotonic()
        ended = run(command, min(seconds, left), results / f"{name}.log", env) if left > 0 else "not run: no time left"
        summary[name] = {"ended": ended, "seconds": round(time.monotonic() - begin, 1),
                         "command": " ".join(str(word) for word in command)}
        print(f"{name:18} {summary[name]['seconds']:6.1f} s  {ended}", flush=True)
        (results / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    bad = [name for name, step in summary.items() if step["ended"] != "passed"]
    print(f"{len(summary) - len(bad)} of {len(summary)} passed" + (f"; not: {', '.join(bad)}" if bad else ""), flush=True)
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("programs", type=lambda path: Path(path).resolve())
    parser.add_argument("results", type=lambda path: Path(path).resolve())
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    all_steps = list(steps(options.programs, options.results))
    if unknown := set(options.only) - {name for name, _, _ in all_steps}:
        parser.error(f"--only {','.join(sorted(unknown))}: there are {', '.join(name for name, _, _ in all_steps)}")
    status = run_all(wanted(all_steps, options.only, options.results), options.results, 60 * options.minutes, environment(options.programs))
    name_device(options.results)
    return status


if __name__ == "__main__":
    sys.exit(main())
