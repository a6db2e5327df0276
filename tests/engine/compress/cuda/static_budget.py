# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Checks kernels without a GPU by their machine code: registers, spills, and the limit by instructions or memory.

usage: static_budget.py NVCC CUOBJDUMP FOLDER ARCHITECTURE...     FOLDER: engine/compress; ARCHITECTURE: sm_90, ...

Compiles every kernel with warnings as errors. For each kernel in TABLE it takes the path with the most 16-byte
accesses (then other accesses, then instructions), and every loop once. It counts the bytes of accesses with the hint
of a stream (__ldcs, __stcs), since all lanes read the others alike, or they are rare. The bounds are those of an
H100: an SM issues 4 warp instructions a cycle. Integers, logic and compares go to 64 lanes, and accesses
and shuffles to 32.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

SMS, CLOCK, BANDWIDTH, LATENCY = 132, 1.7e9, 3.35e12, 700e-9
LANES = {"issue": 128, "alu": 64, "lsu": 32}
NEEDED_KIB = BANDWIDTH * LATENCY / SMS / 1024  # needed in flight on each SM to keep memory busy: 17
LESS_KIB = {"WriteHeaders": 15, "WriteGroups": 15, "DecodeCodes": 15}  # of kernels that miss it

FMA = re.compile(r"^(FADD|FMUL|FFMA|IMAD|IDP|HFMA|HADD|HMUL)")
LSU = re.compile(r"^(LDG|STG|LDS|STS|LD|ST|ATOM|ATOMG|ATOMS|RED|REDG|SHFL|LDL|STL)$")
OTHER = re.compile(
    r"^(BRA|EXIT|BAR|BSSY|BSYNC|NOP|MUFU|S2R|CS2R|LDC|WARPSYNC|CALL|RET|VOTE|REDUX|U[A-Z]+|DEPBAR|YIELD|R2UR|I2F|F2I|S2UR|LDCU)"
)

# A line for each kernel has its source, a part of its mangled name, the largest share of memory's time that
# instructions may take, and the fewest 16-byte accesses on its path. The last entry says which accesses count: those
# of a stream, or all if there are no others. The goal is 0.75. A larger number is the worst of sm_80, sm_90 and
# sm_100, with the limiting factor beside it; above 1, the longest path is bound by instructions. In block_codes'
# encoders that path packs planes, and draws for elements that do not begin at a multiple of four, since one kernel
# has all variants.
TABLE = [
    ("dense", r"DenseEncodeILNS_4core5DTypeE0", 0.50, 6, "stream"),
    ("dense", r"DenseEncodeILNS_4core5DTypeE1", 0.50, 4, "stream"),
    ("dense", r"DenseEncodeILNS_4core5DTypeE2", 0.50, 4, "stream"),
    ("dense", r"DenseDecodeILNS_4core5DTypeE0", 0.50, 4, "stream"),
    ("dense", r"DenseDecodeILNS_4core5DTypeE1", 0.50, 2, "stream"),
    ("dense", r"DenseDecodeILNS_4core5DTypeE2", 0.50, 2, "stream"),
    ("block_codes", r"EncodeByWarpINS.*8IntegersILb0EEE.*Li2ELi1E", 0.90, 6, "stream"),  # planes, by three shuffles a bit
    ("block_codes", r"EncodeByWarpINS.*8IntegersILb0EEE.*Li1ELi2E", 1.15, 3, "stream"),  # likewise
    ("block_codes", r"EncodeByWarpINS.*8IntegersILb1EEE.*NormE0ELi2ELi1E", 1.40, 6, "stream"),  # planes; Philox
    ("block_codes", r"EncodeByWarpINS.*8IntegersILb1EEE.*NormE1ELi1ELi1E", 2.40, 3, "stream"),  # planes; Philox; p twice
    ("block_codes", r"EncodeByWarpINS.*6FloatsILi3.*Li1ELi1E", 1.20, 3, "stream"),  # planes, by three shuffles a bit
    ("block_codes", r"EncodeByWarpINS.*6FloatsILi2.*Li1ELi1E", 1.20, 3, "stream"),  # planes, by three shuffles a bit
    ("block_codes", r"EncodeByWarpINS.*6PowersE.*Li8ELi1E", 1.20, 24, "stream"),  # planes; Philox
    ("block_codes", r"DecodeBytesINS.*8IntegersILb0E", 0.75, 2, "stream"),
    ("block_codes", r"DecodeBytesINS.*6FloatsILi3", 0.80, 2, "stream"),  # codes put in order for a conversion from fp16
    ("block_codes", r"DecodeBytesINS.*6PowersE", 0.75, 2, "stream"),
    ("block_codes", r"DecodePlanesILi1E", 0.75, 2, "all"),
    ("block_codes", r"DecodePlanesILi2E", 0.85, 2, "all"),  # each element's code gathered bit by bit
    # In encoders of signs a lane has every sixteenth element, because the host adds in that order. This takes
    # accesses of 4 bytes, each with an address and a comparison, and sums by shuffles, which weigh most if a tile is
    # small.
    ("signs", r"EncodeTilesILNS0_10SignScalesE0ELi4E", 1.65, 0, "stream"),
    ("signs", r"EncodeTilesILNS0_10SignScalesE0ELi16E", 0.90, 0, "stream"),
    ("signs", r"EncodeTilesILNS0_10SignScalesE1ELi16E", 1.05, 0, "stream"),
    ("signs", r"EncodeTilesILNS0_10SignScalesE2ELi16E", 0.85, 0, "stream"),
    ("signs", r"DecodeSigns", 0.75, 2, "stream"),
    ("packed", r"WriteHeadersILNS0_10PackedTypeE0", 0.75, 0, "all"),
    ("packed", r"WriteGroupsILNS0_10PackedTypeE0", 0.75, 0, "all"),
    ("packed", r"AddGroupsILNS0_10PackedTypeE0", 0.75, 0, "all"),
    ("int_packed", r"WriteStreamsILi4E", 0.50, 16, "stream"),
    ("int_packed", r"WriteStreamsILi3E", 0.50, 16, "stream"),
    ("int_packed", r"CopyStreams", 0.50, 0, "stream"),
    ("int_packed", r"AddStreamsILi4E", 0.80, 16, "stream"),  # bits of Rice codes are put in place one by one
    ("int_packed", r"AddStreamsILi3E", 0.75, 16, "stream"),
    ("randk", r"RandkEncode", 0.75, 6, "stream"),
    ("randk", r"RandkDecode", 1.0, 2, "stream"),  # Philox, and divisions of 64 bits to find strata
    ("thc", r"WriteNorms", 0.75, 0, "all"),
    ("thc", r"11EncodeCodes", 0.75, 16, "stream"),
    ("thc", r"11DecodeCodes", 0.75, 8, "stream"),
    ("sparse", r"MarkUnitsILNS1_5WidthE0", 0.75, 0, "all"),
    ("sparse", r"MarkUnitsILNS1_5WidthE1", 0.80, 0, "all"),  # elements are compared, marks kept in shared memory
    ("sparse", r"MarkUnitsILNS1_5WidthE2", 0.75, 0, "all"),
    ("sparse", r"WriteUnits", 0.75, 0, "all"),
    ("sparse", r"AddUnits", 0.90, 0, "all"),  # the place of each unit is found by counting bits
    ("topk", r"CollectILb0E", 0.75, 24, "stream"),
    ("topk", r"DecodeTopk", 0.75, 0, "all"),
    ("powersgd", r"MultiplyRows", 0.80, 0, "all"),  # 16 products an element, without fused additions
    ("powersgd", r"Project", 1.0, 0, "all"),  # likewise, and less memory
    ("powersgd", r"MultiplyOuter", 0.75, 0, "all"),
]


class Kernel:
    """One function's instructions, from cuobjdump -sass."""

    def __init__(self, code, counted="stream"):
        self.counted = counted
        self.place = {address: i for i, (address, _) in enumerate(code)}
        self.text = [text for _, text in code]
        self.op = [re.sub(r"^@!?U?P\w+\s+", "", text).split()[0] for text in self.text]

    def is_memory(self, i):
        return self.op[i].startswith(("LDG", "STG"))

    def is_wide(self, i):
        return self.is_memory(i) and ".128" in self.op[i]

    def bytes(self, i):
        if not self.is_memory(i) or (self.counted == "stream" and ".EF" not in self.op[i]):
            return 0
        size = re.search(r"\.(U8|S8|U16|S16|64|128)\b", self.op[i])
        return {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}.get(size.group(1) if size else "", 4)

    def target(self, i):
        return self.place.get(int(re.findall(r"0x([0-9a-f]+)", self.text[i])[-1], 16), 0)

    def following(self, i):
        predicated, op = self.text[i].startswith("@"), self.op[i].split(".")[0]
        behind = [i + 1] if i + 1 < len(self.text) else []
        if op == "EXIT":
            return behind if predicated else []
        if op == "RET":
            return []
        if op == "BRA":
            conditional = predicated or re.search(r"BRA\S*\s+!?U?P\w", self.text[i]) or "DIV" in self.op[i]
            return ([self.target(i)] if self.target(i) > i else []) + (behind if conditional else [])
        if op == "CALL" and predicated:  # for sm_80 the exit of a loop, to the code behind its last branch
            return ([self.target(i)] if self.target(i) > i else []) + behind
        return behind

    def path(self):
        best = {}
        for i in range(len(self.text) - 1, -1, -1):
            ways = [best[j] for j in self.following(i) if j in best]
            tail = max(ways, key=lambda way: way[0]) if ways else ((0, 0, 0), None)
            here = (self.is_wide(i), self.is_memory(i), 1)
            best[i] = (tuple(a + b for a, b in zip(here, tail[0])), (i, tail[1]))
        way, node = [], best[0][1]
        while node:
            way.append(node[0])
            node = node[1]
        return way

    def asked_at_once(self, way):
        """The most bytes that a thread requests before it needs the first of them."""
        waiting, asked, most = set(), 0, 0
        for i in way:
            operands = [int(register) for register in re.findall(r"\bR(\d+)\b", self.text[i])]
            if self.op[i].startswith("LDG"):
                words = 4 if ".128" in self.op[i] else 2 if ".64" in self.op[i] else 1
                waiting |= set(range(operands[0], operands[0] + words))
                asked += self.bytes(i)
            elif waiting & set(operands):
                most, waiting, asked = max(most, asked), set(), 0
        return max(most, asked)

    def shares(self, way):
        """The time of each unit's instructions as a share of memory's time."""
        names = [self.op[i].split(".")[0] for i in way]
        lsu = sum(bool(LSU.match(name)) for name in names)
        alu = sum(not (FMA.match(name) or LSU.match(name) or OTHER.match(name)) for name in names)
        memory = sum(map(self.bytes, way)) / BANDWIDTH or 1e-30
        return {unit: count / (LANES[unit] * SMS * CLOCK) / memory for unit, count in zip(LANES, (len(names), alu, lsu))}


def compile_kernels(nvcc, source, architecture, cubin):
    """Registers and spilled bytes of each kernel. A warning is an error."""
    command = [nvcc, "-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr", "-Werror", "all-warnings", "-Xptxas", "-v"]
    root = source.parents[3]
    done = subprocess.run(
        [*command, f"-arch={architecture}", f"-I{root}", "-cubin", "-o", cubin, source], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{source.name} for {architecture}:\n{done.stderr[-3000:]}")
    found = re.findall(
        r"Compiling entry function '(\S+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
        done.stdout + done.stderr,
        re.S,
    )
    return {name: (int(registers), int(stores) + int(loads)) for name, stores, loads, registers in found}


def functions(cuobjdump, cubin):
    text = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    for part in text.split("Function : ")[1:]:
        code = [(int(a, 16), line.strip()) for a, line in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", part)]
        yield part.split("\n", 1)[0].strip(), Kernel(code)


def check(nvcc, cuobjdump, folder, architecture, say=print):
    """Yields a line for each violation of the budget. Without cuobjdump it checks warnings and spills alone."""
    broken, seen = [], set()
    with tempfile.TemporaryDirectory() as scratch:
        for source in sorted(Path(folder).resolve().glob("*/*.cu")):
            cubin = Path(scratch, source.stem + ".cubin")
            usage = compile_kernels(nvcc, source, architecture, cubin)
            broken += [f"{source.name} {architecture}: {name} spills {n} bytes" for name, (_, n) in usage.items() if n > 0]
            if not cuobjdump:
                continue
            for name, kernel in functions(cuobjdump, cubin):
                # nvcc emits this for code without a meaning on a device, such as the address of a host's constant.
                if any(op.startswith("BPT.TRAP") for op in kernel.op):
                    broken.append(f"{source.name} {architecture}: {name} ends in a trap")
                for row in TABLE:
                    if row[0] != source.stem or not re.search(row[1], name) or row in seen:
                        continue
                    seen.add(row)
                    broken += look_at(row, name, kernel, usage[name][0], architecture, say)
    if cuobjdump:
        broken += [f"{architecture}: no kernel is called {row[0]}: {row[1]}" for row in TABLE if row not in seen]
    return broken


def look_at(row, name, kernel, registers, architecture, say):
    source, pattern, most, fewest, kernel.counted = row
    way = kernel.path()
    wide, shares = sum(map(kernel.is_wide, way)), kernel.shares(way)
    warps = min(64, 65536 // (-(-registers // 8) * 8 * 32) // 8 * 8)
    in_flight = kernel.asked_at_once(way) * warps * 32 / 1024
    moved = sum(map(kernel.bytes, way))
    say(
        f"{architecture:7}{source + ': ' + pattern[-30:]:46}{registers:4} registers{len(way):6} instructions{moved:5} B"
        f"{wide:4} wide" + "".join(f"  {unit} {share:4.0%}" for unit, share in shares.items()) + f"{in_flight:6.0f} KiB/SM"
    )
    wrong = [f"{unit} takes {share:.0%} of memory's time, not {most:.0%} at most" for unit, share in shares.items() if share > most]
    if wide < fewest:
        wrong.append(f"{wide} accesses of 16 bytes, not {fewest}")
    needed = min([NEEDED_KIB, *(kib for kernel_name, kib in LESS_KIB.items() if kernel_name in name)])
    if in_flight < needed:
        wrong.append(f"{in_flight:.0f} KiB under way on an SM, not {needed:.0f}")
    return [f"{architecture}: {name}: {what}" for what in wrong]


def main():
    nvcc, cuobjdump, folder, *architectures = sys.argv[1:]
    broken = [line for architecture in architectures for line in check(nvcc, cuobjdump, folder, architecture)]
    print("\n".join(broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
