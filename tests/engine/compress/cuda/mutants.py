# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Bugs for the kernels, which test their tests. All of them are in one program, which enables one at a time.

Each is a place in a source of kernels (engine/compress, the first occurrence of that text), its replacement, and the
compressors whose tests should notice. `expression` and `statement` give the kind of code.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    source: str
    old: str
    new: str
    specs: str  # of tests to run, as in their names: "int8_256 natural"
    kind: str = "expression"


def expression(source, old, new, specs):
    return Mutant(source, old, new, specs)


def statement(source, old, specs, new=""):
    return Mutant(source, old, new, specs, "statement")


BARRIER = "__syncthreads();"

MUTANTS = [
    # dense.cu
    expression("dense.cu", "codes[2] | codes[3] << 16", "codes[2] | codes[2] << 16", "fp16"),
    expression("dense.cu", "codes[0] | codes[1] << 16", "codes[1] | codes[0] << 16", "bf16"),
    expression("dense.cu", "abs_bits(p[g].at[j]) <= job.largest", "abs_bits(p[g].at[j]) < job.largest", "fp16"),
    expression("dense.cu", "p[g].at[j] - value.at[j]", "value.at[j] - p[g].at[j]", "bf16"),
    expression("dense.cu", "sum[g].at[j] += value[g].at[j]", "sum[g].at[j] = value[g].at[j]", "bf16"),
    # elements.cuh
    expression("elements.cuh", "(bits + 0x7fff + (bits >> 16 & 1)) >> 16", "(bits + 0x7fff) >> 16", "bf16"),
    expression("elements.cuh", "i + j < n", "i + j + 1 < n", "none"),
    expression("elements.cuh", "before.at[j] + missed.at[j]", "missed.at[j]", "bf16"),
    expression("elements.cuh", "payload + 1 < seen", "payload + 1 > seen", "int8_256"),
    expression("elements.cuh", "lane >= by", "lane > by", "packed"),
    expression("elements.cuh", "before + inclusive - value", "before + inclusive", "packed"),
    # frames.cuh
    expression("frames.cuh", "header[2] == frames.n", "header[2] >= frames.n", "int8_256"),
    expression("frames.cuh", "frames.least <= header[3]", "frames.least < header[3] + 2", "topk_0_02"),
    expression("frames.cuh", "header[0] == kPayloadMagic", "true", "int8_256"),
    # runs.cuh
    expression("runs.cuh", "before + sum + length", "before + sum", "packed"),
    expression("runs.cuh", "run == 0 ? 0 : int64_t{ends[run - 1]} * unit", "int64_t{ends[run - 1]} * unit", "int4packed_256"),
    expression("runs.cuh", "i < round_up(used, kUsedUnit)", "i < used", "int4packed_256"),
    expression("runs.cuh", "round_up(begin + end, kUsedUnit) != said * kUsedUnit", "false", "int4packed_256"),
    expression("frames.cuh", "__float_as_uint(scale) >= kInfinityBits", "__float_as_uint(scale) > kInfinityBits", "efsignsgd_64"),
    # codes.cuh
    expression("codes.cuh", "random & 0x7fff", "random & 0x3fff", "terngrad_256"),
    expression("codes.cuh", "((four & 0x7f7f7f7f) + 0x01010101) & four & 0x80808080", "(four + 0x01010101) & four & 0x80", "int8_256"),
    expression("codes.cuh", "exponent < kSmallest ? kSmallest : exponent", "exponent", "fp8e4m3_128"),
    expression("codes.cuh", "random << 7", "random << 6", "natural"),
    expression("codes.cuh", "norm == 0", "norm == 1", "natural"),
    expression("codes.cuh", "good && unit >= FLT_MIN", "good", "int8_256"),
    expression("codes.cuh", "(__float_as_uint(unit) + 0xffff) & 0xffff0000", "__float_as_uint(unit) & 0xffff0000", "int4_64"),
    expression("codes.cuh", "sent - coded.value * unit.unit", "__builtin_fmaf(-coded.value, unit.unit, sent)", "int8_256"),
    # random.cuh
    expression("random.cuh", "in_group >= 64", "in_group > 64", "terngrad_256"),
    expression("random.cuh", "in_group / 32 % 2 == 1", "in_group / 32 % 2 == 0", "terngrad_256"),
    expression("random.cuh", "of.use | kSharedUse", "of.use", "randk_0_1"),
    # norms.cuh
    expression("norms.cuh", "squares > 0x1p-80F", "squares > -1", "qsgd_8"),
    expression("norms.cuh", "n / 32 * 32", "n / 64 * 64", "thc_30"),
    # block_codes.cu
    expression("block_codes.cu", "lane / 16 * job.bits * 2 + bit * 2 + lane / 8 % 2", "lane / 16 * job.bits * 2 + bit * 2", "terngrad_256"),
    expression("block_codes.cu", "4 * (lane % 8)", "4 * (lane % 4)", "terngrad_256"),
    expression("block_codes.cu", "0x5410", "0x1054", "int8_256"),
    expression("block_codes.cu", "shared.largest[w]", "shared.largest[w / 2]", "int8_65536"),
    statement("block_codes.cu", BARRIER, "int8_192"),
    expression("block_codes.cu", "code[j] >= 2", "code[j] > 2", "terngrad_256"),
    expression("block_codes.cu", "byte >> j & 1", "byte >> j & 2", "int4_64"),
    expression("block_codes.cu", "all &= byte", "all &= 0", "int4_64"),
    # signs.cu
    expression("signs.cu", "(16 * half)", "(16 * 0)", "efsignsgd_64"),
    expression("signs.cu", "k * 16 + 8 < count", "k * 16 + 8 <= count", "efsignsgd_8"),
    expression("signs.cu", "m * 16 < whole", "m * 16 <= whole", "efsignsgd_8 onebit_256"),
    expression("signs.cu", "n - sums.negatives", "n - sums.negatives + 1", "onebit_256"),
    expression("signs.cu", "0xfffff000", "0xffffff00", "signsgd"),
    expression("signs.cu", "job.momentum[first + m * kLanes + k] * job.decay", "job.momentum[first + m * kLanes + k]", "signum_0_9"),
    expression("signs.cu", "first % job.block == 0", "first == 0", "efsignsgd_64"),
    expression("signs.cu", "bits >> j & 1", "bits >> (7 - j) & 1", "efsignsgd_64"),
    # packed.cu
    expression("packed.cu", "exponent - 1 < least ? exponent - 1 : least", "exponent < least ? exponent : least", "packed"),
    expression("packed.cu", "32 - __clz(static_cast<int>(most - base))", "31 - __clz(static_cast<int>(most - base))", "packed"),
    expression("packed.cu", "exponent == 0 ? 0 : exponent - header.base", "exponent - header.base", "packed"),
    expression("packed.cu", "lane == 0 ? low_word : high_word", "lane == 0 ? high_word : low_word", "packed"),
    expression("packed.cu", "code == 0 ? 0 : (code + header.base) & 0xff", "(code + header.base) & 0xff", "packed"),
    # rice.cuh
    expression("rice.cuh", "mask & ((word & (0 - word)) - 1)", "mask & ((word & (0 - word)) * 2 - 1)", "int4packed_256"),
    expression("rice.cuh", "bits >> __popc(lower)", "bits >> 32", "int4packed_256"),
    expression("rice.cuh", "__funnelshift_r(from[1], from[2], at % 32)", "from[1] >> at % 32", "int4packed_256"),
    expression("rice.cuh", "__funnelshift_l(upper, 0, at % 32)", "0", "int4packed_256"),
    expression("rice.cuh", "code ^ (carry | ~positive)", "code ^ ~positive", "int4packed_256"),
    expression("rice.cuh", "cost > least", "cost >= least", "int4packed_256"),
    expression("rice.cuh", "k * n + sum + n - count_bits(top)", "k * n + sum + n", "int4packed_256"),
    statement("rice.cuh", "borrow &= magnitudes_[bit];", "int4packed_256", "borrow = 0;"),
    statement("rice.cuh", "if (j == 0) some |= word;", "int3packed_256", "some |= word;"),
    expression("rice.cuh", "some & first_bits(elements)", "some", "int4packed_64"),
    expression("rice.cuh", "(at + 63) / 64 * 64 == in.end", "at <= in.end", "DeviceIntPacked.AcceptsTheStreamsThatTheHostAccepts"),
    expression("rice.cuh", "at == begin_of(part + 1)", "true", "DeviceIntPacked.AcceptsTheStreamsThatTheHostAccepts"),
    expression("rice.cuh", "n < next ? n : next", "next", "int4packed_256"),
    expression("rice.cuh", "(of - 1) * kRiceBeginBits", "of * kRiceBeginBits", "int3packed_256"),
    expression("rice.cuh", "k > kPlanes - 1", "k > kPlanes", "DeviceIntPacked.AcceptsTheStreamsThatTheHostAccepts"),
    expression("rice.cuh", "magnitudes[bit] ^ (borrow | ~positive)", "magnitudes[bit] ^ ~positive", "int3packed_256"),
    # int_packed.cu
    expression("int_packed.cu", "apart < 8", "apart < 4", "int4packed_64"),
    expression("int_packed.cu", "group / job.blocks.groups * job.blocks.groups", "group", "int4packed_256"),
    expression("int_packed.cu", "low | high << 4", "high | low << 4", "int4packed_256"),
    expression("int_packed.cu", "(four & 0x01010101) * 0x01020408 >> 24", "(four & 0x01010101) * 0x01020408 >> 23", "int4packed_256"),
    expression("int_packed.cu", "begin <= end", "true", "DeviceIntPacked.AcceptsTheStreamsThatTheHostAccepts"),
    expression("int_packed.cu", "q < count", "q < kTogether", "int4packed_256"),
    expression("int_packed.cu", "is_first ? value : sum[e][h].at[j] + value", "sum[e][h].at[j] + value", "DeviceIntPacked.AcceptsTheStreamsThatTheHostAccepts"),
    expression("int_packed.cu", "bits * 0x00204081 & 0x01010101", "bits * 0x00204081 & 0x00010101", "int4packed_256"),
    statement("int_packed.cu", "for (unsigned i = threadIdx.x; i < kStreamWords<kBits>; i += kThreads) shared.stream[i] = 0;", "int4packed_256"),
    statement("int_packed.cu", "if (is_bad) tell_rejected(job.sums.verdict, job.sums.first + p);", "int4packed_256"),
    statement("int_packed.cu", BARRIER, "int4packed_256"),
    # randk.cu
    expression("randk.cu", "stratum / 4 * 4", "stratum", "randk_0_1"),
    expression("randk.cu", "0.0F + sum", "sum", "randk_0_1"),
    expression("randk.cu", "sent >> j & 1", "sent >> (j ^ 1) & 1", "randk_0_1"),
    expression("randk.cu", "from <= element && element < to", "from < element && element < to", "randk_0_1"),
    # thc.cu
    expression("thc.cu", "other - v[j]", "v[j] - other", "thc_30"),
    expression("thc.cu", "largest < norm ? norm : largest", "largest + norm", "thc_30"),
    expression("thc.cu", "above < most ? above : most", "above", "thc_30"),
    expression("thc.cu", "lane < 24", "lane < 23", "thc_30"),
    expression("thc.cu", "largest > most", "largest > most + 1", "thc_30"),
    # topk_select.cuh
    expression("topk_select.cuh", "is_candidate && key > largest", "is_candidate && key < largest", "topk_0_02"),
    expression("topk_select.cuh", "2 * uint64_t{job.state->found} >= job.k", "uint64_t{job.state->found} >= job.k", "threshk_0_02"),
    expression("topk_select.cuh", "before < rank && rank <= before + counts[i]", "before <= rank && rank < before + counts[i]", "threshk_0_02"),
    expression("topk_select.cuh", "sum - low - high", "sum - high", "topk_0_02"),
    expression("topk_select.cuh", "wanted - before", "wanted", "threshk_0_02"),
    statement("topk_select.cuh", "for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) shared.bins[bin] = 0;", "topk_0_02"),
    # topk.cu
    expression("topk.cu", "of.ties < left ? of.ties : left", "of.ties", "topk_0_02 topk_1e_06"),
    expression("topk.cu", "ties && tie < of.ties", "ties && tie <= of.ties", "topk_0_02 topk_1e_06"),
    expression("topk.cu", "job.state->count + int64_t{chunk} * kThreads", "job.state->count + 1 + int64_t{chunk} * kThreads", "topk_0_02"),
    expression("topk.cu", "positions[i - 1] < position", "positions[i - 1] <= position", "topk_1"),
    # sparse_units.cuh
    expression("sparse_units.cuh", "at[a] < count", "at[a] <= count", "coo"),
    expression("sparse_units.cuh", "has_two && at[2 * a + 1] < count", "at[2 * a + 1] < count", "rows"),
    expression("sparse_units.cuh", "found >> (lane << of.lane_bits) & others", "found >> lane & others", "blocks_16"),
    expression("sparse_units.cuh", "limit < of.tile ? listed.before : count", "count", "coo"),
    expression("sparse_units.cuh", "(1U << (limit - begin)) - 1", "(2U << (limit - begin)) - 1", "rows"),
    expression("sparse_units.cuh", "unit == last_in_tile ? last_end : end", "end", "blocks_256"),
    statement("sparse_units.cuh", BARRIER, "rows blocks_256"),
    # sparse.cu
    expression("sparse.cu", "before + sum", "before + sum + count", "coo"),
    expression("sparse.cu", "before + found.before", "before", "rows"),
    expression("sparse.cu", "tile + 1 == job.tile_count", "false", "blocks_256"),
    expression("sparse.cu", "shared.sums[part.at - begin] += value", "shared.sums[part.at - begin] = value", "rows"),
    expression("sparse.cu", "shared.sums[i] += value[a]", "shared.sums[i] = value[a]", "coo"),
    expression("sparse.cu", "sums.accumulate ? out[i] : 0.0F", "0.0F", "rows"),
    expression("sparse.cu", "header[6] != shape.width", "false", "coo"),
    expression("sparse.cu", "layout.bytes == int64_t{header[3]} * kUsedUnit", "true", "rows"),
    expression("sparse.cu", "left < 32 ? words[word] & ((1U << left) - 1) : words[word]", "words[word]", "rows"),
    expression("sparse.cu", "starts[0] != 0", "false", "coo"),
    expression("sparse.cu", "opened.from == all - found.count", "true", "rows"),
    expression("sparse.cu", "index[at - 1] < index[at]", "true", "coo"),
    # powersgd.cu
    expression("powersgd.cu", "before[c] != 0", "false", "powersgd_4"),
    expression("powersgd.cu", "job.partials[run * job.numbers + i]", "0", "DevicePowerSgd.HasTheSumsOfManyRowsThatTheHostHas"),
    # orthonormal.cuh
    expression("orthonormal.cuh", "kept[i] * r[i]", "static_cast<float>(kept[i]) * r[i]", "powersgd_4"),
    expression("orthonormal.cuh", "i <= j", "i < j", "powersgd_4"),
    expression("orthonormal.cuh", "job.before[piece * pairs + pair]", "0", "DevicePowerSgd.HasTheSumsOfManyRowsThatTheHostHas"),
    expression("orthonormal.cuh", "left > shared.least[k]", "left > 1e12 * shared.least[k]", "powersgd_4"),
]
