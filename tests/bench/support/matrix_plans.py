# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Strategies to pin beside the committed one: those that raced, and those that a person would write by hand."""
import math

from support.shaped import measured_ms, plans

WORTH = 1.25  # factor over the fastest one, as measured in tuning
CAPS = (0, 1 << 18, 1 << 21, 1 << 40)  # elements in a bucket; with 0 each tensor is a bucket
IN_FLIGHT = 2
SMALL_SHARE = 0.005  # of all elements: kSmallShare of engine/core/gradient_table.h
SOUND = {"packed", "fp16", "bf16", "bf16packed"}  # compressors that small tensors may have


def raced(entries):
    """The strategies of a journal that came near the fastest, by label."""
    held, measured = plans(entries), measured_ms(entries)
    best = min(measured.values(), default=0)
    return {label: held[label] for label in sorted(measured, key=measured.get) if label in held and
            measured[label] <= WORTH * best}


def by_hand(entries, committed):
    """One program for all dense tensors and one bucket size: each program of the committed strategy, and of the journal's
    that came near the fastest one, with each of CAPS. A tensor with a scheme of its own for sparse gradients keeps its
    bucket. Small tensors keep their program where the other one is lossy, as `lossy` promises."""
    sizes, held = sizes_of(entries), {committed["label"]: committed, **plans(entries)}
    found, measured = {}, measured_ms(entries)
    best = min(measured.values(), default=0)
    measured[committed["label"]] = best
    for label, plan in held.items():
        for bucket in plan["buckets"]:
            if bucket in kept_apart(plan):
                continue
            found[bucket["option"]] = min(found.get(bucket["option"], (math.inf, None)), (measured.get(label, math.inf), label))
    made = {}
    for option in sorted(found, key=lambda option: found[option][0]):
        if found[option][0] <= WORTH * best:
            for cap in CAPS:
                plan = uniform(held[found[option][1]], sizes, option, cap)
                made[plan["label"]] = plan
    return made


def sizes_of(entries):
    table = [entry for entry in entries if entry.get("kind") == "table"][-1]
    return {tensor["name"]: math.prod(tensor["shape"]) for tensor in table["tensors"]}


def kept_apart(plan):
    """The buckets of sparse tensors: their option says how rows travel."""
    return [bucket for bucket in plan["buckets"] if bucket["option"].split(":")[0] in ("rows", "coo", "blocks")]


def small_tensors(plan, sizes):
    """The tensors at the end that a lossy program leaves out. The order of a journal's tensors has them last."""
    small, room = [], SMALL_SHARE * sum(sizes.values())
    for name in reversed(plan["tensors"]):
        room -= sizes[name]
        if room < 0:
            break
        small.append(name)
    return small


def loses(option):
    """True if the option, such as "int8,bf16: encode@device ...", changes gradients beyond rounding."""
    codecs = option.rpartition(": ")[0]
    return any(codec.split(":")[0] not in SOUND for codec in codecs.split(",") if codec)


def uniform(plan, sizes, option, cap):
    """The plan with that option for all its dense tensors, in buckets of at most `cap` elements unless one tensor has more."""
    own = {piece["tensor"]: bucket for bucket in plan["buckets"] for piece in bucket["slices"]}
    apart, small = kept_apart(plan), small_tensors(plan, sizes) if loses(option) else []
    small = [name for name in small if not loses(own[name]["option"])]
    buckets, last, filled = [], None, 0
    for name in plan["tensors"]:  # buckets follow the order of the tensors
        if own[name] in apart:
            buckets.append(own[name])
            last = None
            continue
        wanted = own[name]["option"] if name in small else option
        if last is None or last["option"] != wanted or (filled + sizes[name] > cap and name not in small):
            last, filled = {"option": wanted, "due": "backward", "slices": []}, 0
            buckets.append(last)
        last["slices"].append({"tensor": name, "offset": 0, "length": sizes[name]})
        filled += sizes[name]
    # The next bucket's first collective goes before the last one's second.
    order = sorted((at + turn, turn, at, step) for at, bucket in enumerate(buckets)
                   for turn, step in enumerate(steps_of_collectives(plan, bucket["option"])))
    name = {0: "each tensor", 1 << 40: "one bucket"}.get(cap, f"{cap >> 18} MiB")
    return {**plan, "label": f"by hand: {option}, {name}", "buckets": buckets, "evidence": None, "in_flight": IN_FLIGHT,
            "order": [[at, step] for _, _, at, step in order]}


def steps_of_collectives(plan, option):
    """The positions of the collectives in the steps of that option of the plan."""
    bucket = next(at for at, each in enumerate(plan["buckets"]) if each["option"] == option)
    return [step for at, step in plan["order"] if at == bucket]
