# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The values that a wrapped optimizer reports to a program."""

from __future__ import annotations

from dataclasses import dataclass

STAGES = ("observe", "partition", "race", "confirm", "watch", "audit", "imported", "follow")
"""All stages of tuning; ranks but 0 follow."""


@dataclass(frozen=True)
class Progress:
    """The state of tuning. Times are in ms, for the previous step on this rank."""

    step: int
    """Steps done."""
    epoch: int
    """Number of the strategy in force, the same on all ranks."""
    stage: str
    """observe, partition, race, confirm, watch, audit or imported; "follow" on ranks but 0."""
    strategy: str
    """Label of the strategy in force, for people."""
    nonfinite_steps: int
    """Steps in which some rank met a NaN or Inf."""
    step_ms: float
    """The whole step, in ms."""
    encode_ms: float
    """Compressing, in ms on the thread that runs backward."""
    decode_ms: float
    """Decompressing, in ms on that thread."""
    wait_ms: float
    """Waiting for communication, in ms on that thread."""
    bytes: int
    """Sent for gradients in the last step, by the busiest link in one direction."""


@dataclass(frozen=True)
class Result:
    """The result of tuning, the same on all ranks. Times in ms, maximum over ranks; gain = 1 - committed / baseline."""

    decided: bool
    """True after the first decision; in rounds of several fragments, after that of each of them."""
    committed: bool
    """True if a strategy is committed; otherwise the baseline runs, or a strategy on trial."""
    baseline_ms: float
    """A step of the baseline in ms; 0 before the first decision."""
    committed_ms: float | None
    """A step of the committed strategy in ms; None without one."""
    predicted_ms: float | None
    """The same as the policy's model predicted it; None without a model."""
    gain: float
    """A share of the baseline's time: 0.2 is 20 %."""
    gain_low: float
    """The lower bound, which decided: above 0 if a strategy is committed, and too high with a probability of 4 %."""
    gain_high: float
    """The upper bound, which is too low with a probability of 2.5 %."""
    steps: int
    """Steps of tuning, audits and further tunings included."""
    cost_ms: float
    """Sum of max(0, step - baseline) in these steps, in ms."""
    cost_share: float
    """The same as a share of 2,000 steps of the baseline."""
    first_commit: int | None
    """Steps before the first committed strategy came into force."""
    story: str
    """How the job stands and what led to it, in the words of the line that rank 0 prints when something is decided."""
    strategy: str
    """Label of what is committed; before that of what the job began with, or of the baseline."""
    description: str
    """Its buckets, for people; in rounds of several fragments those of each of them. The rest is the first one's then."""
    fidelity: str
    """exact, half or lossy."""

    def __str__(self) -> str:
        """The decision and its reasons, in a few lines."""
        lines = [f"gradtune: {self.story}"]
        if self.committed and self.predicted_ms is not None:
            lines.append(f"predicted: {self.predicted_ms:.1f} ms a step")
        lines.append(f"fidelity {self.fidelity}; {self.description}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Scalar:
    """A number for loggers, with the name gradtune/<name>."""

    name: str
    """Without the prefix gradtune/."""
    unit: str
    """ms, B (bytes), share (0.2 is 20 %) or empty for counts."""
    meaning: str
    """For people."""


SCALARS = (
    Scalar("step_ms", "ms", "the previous step on this rank"),
    Scalar("encode_ms", "ms", "compressing in it, on the thread that runs backward"),
    Scalar("decode_ms", "ms", "decompressing in it, on the thread that runs backward"),
    Scalar("wait_ms", "ms", "waiting in it, on the thread that runs backward"),
    Scalar("bytes", "B", "sent for gradients in it, by the busiest link in one direction"),
    Scalar("epoch", "", "number of the strategy in force; it grows when another strategy comes into force"),
    Scalar("stage", "", "position of Progress.stage in gradtune.STAGES"),
    Scalar("nonfinite_steps", "", "steps so far in which some rank met a NaN or Inf"),
    Scalar("baseline_ms", "ms", "a step of the baseline; absent before it was confirmed with a strategy"),
    Scalar("committed_ms", "ms", "a step of the committed strategy; absent without one"),
    Scalar("gain", "share", "1 - committed / baseline; absent without a committed strategy"),
    Scalar("gain_low", "share", "the lower bound that decided; absent without a committed strategy"),
    Scalar("tuning_cost_ms", "ms", "time that tuning has cost so far; absent before the first decision"),
)
"""All scalars that loggers get."""


def scalars_of(progress: Progress, result: Result) -> dict[str, float]:
    """Returns the present value of each of SCALARS by its full name. Values that do not exist yet are left out."""
    values: dict[str, float | None] = {
        "step_ms": progress.step_ms,
        "encode_ms": progress.encode_ms,
        "decode_ms": progress.decode_ms,
        "wait_ms": progress.wait_ms,
        "bytes": progress.bytes,
        "epoch": progress.epoch,
        "stage": STAGES.index(progress.stage),
        "nonfinite_steps": progress.nonfinite_steps,
        "baseline_ms": result.baseline_ms if result.baseline_ms > 0 else None,
        "committed_ms": result.committed_ms if result.committed else None,
        "gain": result.gain if result.committed else None,
        "gain_low": result.gain_low if result.committed else None,
        "tuning_cost_ms": result.cost_ms if result.decided else None,
    }
    named = ((f"gradtune/{each.name}", values[each.name]) for each in SCALARS)
    return {name: float(value) for name, value in named if value is not None}
