# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Strategies to pin beside the committed one: those that raced, and those that a person would write by hand."""
import math

from support.shaped import measured_ms, plans

WORTH = 1.25  # factor over the fastest one, as measured in tuning
CAPS = (0, 1 << 18, 1 << 21, 1 << 40)  # elements in a bucket; with 0 each tensor is a bucket
IN_FLIGHT = 2


def raced(entries):
    """The strategies of a journal that came near the fastest, by label."""
    held, measured = plans(entries), measured_ms(entries)
    best = min(measured.values(), default=0)
    return {label: held[label] for label in sorted(measured, key=measured.get) if label in held and
            measured[label] <= WORTH * best}


def by_hand(entries, committed):
    """One program for all dense tensors and one bucket size: each program of the committed strategy, and of the journal's
    that came near the fastest one, with each of CAPS. A tensor with a scheme of its own for sparse gradients keeps its
    bucket."""
    found, held, measured = {}, {committed["label"]: committed, **plans(entries)}, measured_ms(entries)
    best = min(measured.values(), default=0)
    measured[committed["label"]] = best
    for label, plan in held.items():
        for bucket in plan["buckets"]:
            if len(plan["buckets"]) == len(kept_apart(plan)) or bucket in kept_apart(plan):
                continue
            found[bucket["option"]] = min(found.get(bucket["option"], (math.inf, None)), (measured.get(label, math.inf), label))
    made, sizes = {}, sizes_of(entries)
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


def uniform(plan, sizes, option, cap):
    """The plan with that option for all its dense tensors, in buckets of at most `cap` elements unless one tensor has more."""
    apart = kept_apart(plan)
    sparse = {piece["tensor"] for bucket in apart for piece in bucket["slices"]}
    buckets, filled = [], math.inf
    for name in plan["tensors"]:  # buckets follow the order of the tensors
        if name in sparse:
            buckets += [bucket for bucket in apart if bucket["slices"][0]["tensor"] == name]
            filled = math.inf
            continue
        if filled + sizes[name] > cap:
            buckets.append({"option": option, "due": "backward", "slices": []})
            filled = 0
        buckets[-1]["slices"].append({"tensor": name, "offset": 0, "length": sizes[name]})
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
