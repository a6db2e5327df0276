// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/packed/packed_kernels.h"

#include <bit>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/packed/packed_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/planes-inl.h"
#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

constexpr auto kGroup = static_cast<size_t>(kGroupElements);

// The bits of what is sent of element i, as an fp32 number.
template <PackedType type, class D>
HWY_INLINE auto sent_bits(D d, const EncodeRun& run, size_t i) {
  const hn::RebindToUnsigned<D> du;
  const auto sent = hn::Mul(load_p(d, run.gradient, run.residual, i), hn::Set(d, run.scale));
  if constexpr (type == PackedType::bf16) return hn::ShiftLeft<16>(bf16_bits(d, sent));
  return hn::BitCast(du, sent);
}

// The errors of elements i and following, if errors are kept.
template <class D, class V>
HWY_INLINE void write_error(D d, const EncodeRun& run, size_t element, V bits, float* error) {
  const auto sent = hn::Mul(load_p(d, run.gradient, run.residual, element), hn::Set(d, run.scale));
  auto missed = hn::Mul(hn::Sub(sent, hn::BitCast(d, bits)), hn::Set(d, run.error_scale));
  if (run.add_to_residual_next) missed = hn::Add(hn::LoadU(d, error), missed);
  hn::StoreU(missed, d, error);
}

// The magnitude of element i, of which the bits that are sent are those of what is sent: of a bfloat16 the upper 16,
// which takes half the instructions of the number itself.
template <PackedType type, class D>
HWY_INLINE auto sent_magnitude(D d, const EncodeRun& run, size_t i) {
  const hn::RebindToUnsigned<D> du;
  const auto sent = hn::Mul(load_p(d, run.gradient, run.residual, i), hn::Set(d, run.scale));
  const auto bits = hn::And(hn::BitCast(du, sent), hn::Set(du, kAbsBits));
  if constexpr (type == PackedType::f32) return bits;
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Min(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))), hn::Set(du, kAbsBits));  // a NaN stays one
}

struct Range {
  bool any;              // bits are set
  uint32_t most, least;  // exponents; the least one that is not 0, less 1
};

template <PackedType type>
HWY_INLINE Range range_of(const EncodeRun& run, size_t begin, size_t n, float* error) {
  const hn::CappedTag<float, kGroup> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto first_exponent = hn::Set(du, 1U << 23);
  auto most = hn::Zero(du), least = hn::Set(du, ~0U);
  const auto see = [&](auto of, size_t i) HWY_ATTR {
    const auto bits = sent_bits<type>(of, run, begin + i);
    if (error != nullptr) write_error(of, run, begin + i, bits, error + i);
    return bits;
  };
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    prefetch_behind(d, run.gradient, run.residual, begin + i);
    const auto magnitude =
        error == nullptr ? sent_magnitude<type>(d, run, begin + i) : hn::And(see(d, i), hn::Set(du, kAbsBits));
    most = hn::Max(most, magnitude);
    least = hn::Min(least, hn::Sub(magnitude, first_exponent));
  }
  constexpr uint32_t kSentBits = type == PackedType::f32 ? ~0U : ~0xffffU;
  const uint32_t largest = hn::GetLane(hn::MaxOfLanes(du, most)) & kSentBits;
  Range range{largest != 0, largest >> 23, hn::GetLane(hn::MinOfLanes(du, least)) >> 23};
  if (largest == 0) {  // zeros, some of which may be negative
    auto any = hn::Zero(du);
    for (size_t j = 0; j < i; j += hn::Lanes(d)) any = hn::Or(any, sent_bits<type>(d, run, begin + j));
    range.any = !hn::AllTrue(du, hn::Eq(any, hn::Zero(du)));
  }
  const hn::CappedTag<float, 1> lane;
  for (; i < n; ++i) {
    const uint32_t bits = hn::GetLane(see(lane, i)), exponent = (bits & kAbsBits) >> 23;
    range = {range.any || bits != 0, std::max(range.most, exponent), std::min(range.least, exponent - 1)};
  }
  return range;
}

template <PackedType type>
PackedHeaders write_group_headers(const EncodeRun run, bool stream, GroupHeader* headers) {
  Output<float> errors(run.residual_next, stream && !run.add_to_residual_next);
  PackedHeaders all{0, true};
  for (size_t tile = 0; tile < run.n; tile += kTile) {
    const size_t end = std::min(run.n, tile + kTile);
    float* const error = errors.tile(tile);
    for (size_t begin = tile; begin < end; begin += kGroup) {
      const Range range = range_of<type>(run, begin, std::min(kGroup, end - begin), offset(error, begin - tile));
      GroupHeader header{.base = 0, .bits = GroupHeader::kNoGroup};
      if (range.any) {
        const uint32_t base = range.most == 0 ? 0 : range.least;
        header = {static_cast<uint8_t>(base), static_cast<uint8_t>(std::bit_width(range.most - base))};
      }
      all.finite &= range.most != 0xff;
      all.bytes += group_bytes(type, header.bits);
      *headers++ = header;
    }
    errors.finish_tile(end - tile);
  }
  return all;
}

// Take the 32 bits of a number apart, and put them together: sign and upper fraction are a byte, `high`, the exponent
// becomes a code, and the lower fraction is `low`. They call from(d, i) for the numbers of a group from i on, or
// to(d, i, numbers).
#if HWY_TARGET == HWY_SCALAR

template <PackedType type, class From>
HWY_INLINE void take_apart(const From& from, uint8_t base, uint8_t* codes, uint8_t* high, uint8_t* low) {
  const hn::CappedTag<float, 1> d;
  for (size_t i = 0; i < kGroup; ++i) {
    const uint32_t bits = hn::GetLane(from(d, i)), exponent = bits >> 23 & 0xff;
    codes[i] = static_cast<uint8_t>(exponent == 0 ? 0 : exponent - base);
    high[i] = static_cast<uint8_t>((bits >> 24 & 0x80) | (bits >> 16 & 0x7f));
    if (type == PackedType::bf16) continue;
    const auto rest = static_cast<uint16_t>(bits);
    std::memcpy(low + 2 * i, &rest, sizeof rest);
  }
}

template <PackedType type, class To>
HWY_INLINE void put_together(const uint8_t* codes, const uint8_t* high, const uint8_t* low, uint8_t base,
                             const To& to) {
  const hn::CappedTag<float, 1> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  for (size_t i = 0; i < kGroup; ++i) {
    const uint32_t exponent = codes[i] == 0 ? 0 : (codes[i] + base) & 0xff;
    uint16_t rest = 0;
    if (type == PackedType::f32) std::memcpy(&rest, low + 2 * i, sizeof rest);
    const uint32_t bits = uint32_t{high[i]} >> 7 << 31 | exponent << 23 | (high[i] & 0x7fU) << 16 | rest;
    to(d, i, hn::BitCast(d, hn::Set(du, bits)));
  }
}

#else

// Four vectors of numbers, a to d, at a time: their bytes of one kind are one vector. In a block of 128 bits are four
// bytes, or two times four pairs of them, of each; these have to change places with their like in other blocks.
using Numbers = hn::CappedTag<float, kGroup / 4>;
using Words = hn::RebindToUnsigned<Numbers>;
using Pairs = hn::Repartition<uint64_t, Numbers>;
using Halves = hn::Repartition<uint16_t, Numbers>;
using Bytes = hn::Repartition<uint8_t, Numbers>;
constexpr size_t kBlocks = hn::MaxLanes(Numbers()) / 4;

// Unit u of `rows` times `columns` is what was at u's place among `columns` times `rows`.
template <class D>
HWY_INLINE auto transposed(D d, size_t rows, size_t columns) {
  HWY_ALIGN hn::TFromD<D> from[hn::MaxLanes(D())];
  for (size_t u = 0; u < rows * columns; ++u) from[u] = static_cast<hn::TFromD<D>>(u % columns * rows + u / columns);
  return hn::SetTableIndices(d, from);
}

// Bytes with the first bit of the one and the others of the other.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sign_of(D d, V first, V others) {
  return hn::OrAnd(hn::And(others, hn::Set(d, uint8_t{0x7f})), first, hn::Set(d, uint8_t{0x80}));
}

template <PackedType type, class From>
HWY_INLINE void take_apart(const From& from, uint8_t base, uint8_t* codes, uint8_t* high, uint8_t* low) {
  const Numbers d;
  const Words d32;
  const Pairs d64;
  const Bytes d8;
  constexpr size_t kLanes = hn::MaxLanes(Numbers());
  // The third bytes of a block's numbers, the fourth ones, and the rest.
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {2, 6, 10, 14, 3, 7, 11, 15, 0, 1, 4, 5, 8, 9, 12, 13};
  const auto order = hn::LoadDup128(d8, kOrder);
  const auto by_vector = transposed(d32, 4, kBlocks);
  for (size_t i = 0; i < kGroup; i += 4 * kLanes) {
    const auto sorted = [&](size_t vector) HWY_ATTR {
      return hn::TableLookupBytes(hn::BitCast(d8, from(d, i + vector * kLanes)), order);
    };
    const auto a = sorted(0), b = sorted(1), c = sorted(2), e = sorted(3);
    const auto ab = hn::InterleaveLower(d32, hn::BitCast(d32, a), hn::BitCast(d32, b));
    const auto ce = hn::InterleaveLower(d32, hn::BitCast(d32, c), hn::BitCast(d32, e));
    const auto of_all = [&](auto units) HWY_ATTR {
      return hn::BitCast(d8, hn::TableLookupLanes(hn::BitCast(d32, units), by_vector));
    };
    const auto third = of_all(hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce)));
    const auto fourth = of_all(hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, ce)));
    const auto exponent = hn::Or(hn::Add(fourth, fourth), hn::ShiftRight<7>(third));
    const auto code = hn::IfThenZeroElse(hn::Eq(exponent, hn::Zero(d8)), hn::Sub(exponent, hn::Set(d8, base)));
    hn::StoreU(code, d8, codes + i);
    hn::StoreU(sign_of(d8, fourth, third), d8, high + i);
    if constexpr (type == PackedType::f32) {
      const auto by_two = transposed(d64, 2, kBlocks);
      const auto store = [&](auto first, auto second, size_t at) HWY_ATTR {
        const auto rest = hn::InterleaveUpper(d64, hn::BitCast(d64, first), hn::BitCast(d64, second));
        hn::StoreU(hn::BitCast(d8, hn::TableLookupLanes(rest, by_two)), d8, low + 2 * at);
      };
      store(a, b, i);
      store(c, e, i + 2 * kLanes);
    }
  }
}

template <PackedType type, class To>
HWY_INLINE void put_together(const uint8_t* codes, const uint8_t* high, const uint8_t* low, uint8_t base,
                             const To& to) {
  const Numbers d;
  const Words d32;
  const Pairs d64;
  const Halves d16;
  const Bytes d8;
  constexpr size_t kLanes = hn::MaxLanes(Numbers());
  const auto by_block = transposed(d32, kBlocks, 4);
  for (size_t i = 0; i < kGroup; i += 4 * kLanes) {
    const auto code = hn::LoadU(d8, codes + i), upper = hn::LoadU(d8, high + i);
    // A code that no encoder sends wraps around, and stays an exponent.
    const auto exponent = hn::IfThenZeroElse(hn::Eq(code, hn::Zero(d8)), hn::Add(code, hn::Set(d8, base)));
    const auto of_all = [&](auto bytes) HWY_ATTR {
      return hn::BitCast(d8, hn::TableLookupLanes(hn::BitCast(d32, bytes), by_block));
    };
    const auto fourth = of_all(sign_of(d8, upper, hn::ShiftRight<1>(exponent)));
    const auto third = of_all(sign_of(d8, hn::ShiftLeft<7>(exponent), upper));
    const auto put = [&](auto halves, size_t at) HWY_ATTR {
      auto rest = hn::Zero(d16);
      if constexpr (type == PackedType::f32) {
        const auto loaded = hn::BitCast(d64, hn::LoadU(d8, low + 2 * at));
        rest = hn::BitCast(d16, hn::TableLookupLanes(loaded, transposed(d64, kBlocks, 2)));
      }
      to(d, at, hn::BitCast(d, hn::InterleaveLower(d16, rest, halves)));
      to(d, at + kLanes, hn::BitCast(d, hn::InterleaveUpper(d16, rest, halves)));
    };
    put(hn::BitCast(d16, hn::InterleaveLower(d8, third, fourth)), i);
    put(hn::BitCast(d16, hn::InterleaveUpper(d8, third, fourth)), i + 2 * kLanes);
  }
}

#endif

template <PackedType type>
void write_groups(const EncodeRun run, bool stream, const GroupHeader* headers, std::byte* to) {
  Output<uint8_t> out(reinterpret_cast<uint8_t*>(to), stream);
  size_t at = 0;
  for (size_t begin = 0; begin < run.n; begin += kGroup, ++headers) {
    if (headers->bits == GroupHeader::kNoGroup) continue;
    EncodeRun group = run;
    group.gradient = run.gradient + begin;
    group.residual = offset(run.residual, begin);
    float padded[kGroup];
    if (run.n - begin < kGroup) {
      std::fill_n(padded, kGroup, 0.0F);
      for (size_t i = 0; begin + i < run.n; ++i) {
        padded[i] = group.residual == nullptr ? group.gradient[i] : group.gradient[i] + group.residual[i];
      }
      group.gradient = padded;
      group.residual = nullptr;
    }
    const auto sent = [&](auto d, size_t i) HWY_ATTR {
      prefetch_p(d, group.gradient, group.residual, i + kAhead);
      return sent_bits<type>(d, group, i);
    };
    HWY_ALIGN uint8_t codes[kGroup];
    uint8_t* const planes = out.tile(at);
    uint8_t* const high = planes + size_t{headers->bits} * 8;
    take_apart<type>(sent, headers->base, codes, high, high + kGroup);
    pack_planes(codes, kGroup, headers->bits, planes);
    const auto bytes = static_cast<size_t>(group_bytes(type, headers->bits));
    out.finish_tile(bytes);
    at += bytes;
  }
}

// sums += the values of a group; of `first`, nothing is there yet. Returns where the next group begins.
template <PackedType type>
HWY_INLINE const uint8_t* add_group(const uint8_t* from, const GroupHeader header, bool first, float* sums) {
  if (header.bits == GroupHeader::kNoGroup) {
    if (first) std::fill(sums, sums + kGroup, 0.0F);
    return from;
  }
  for (size_t line = 0; line < kGroup * sizeof(float); line += 64) hwy::Prefetch(from + kAhead + line);
  HWY_ALIGN uint8_t codes[kGroup];
  unpack_planes(from, kGroup, header.bits, codes);
  const uint8_t* const high = from + size_t{header.bits} * 8;
  put_together<type>(codes, high, high + kGroup, header.base, [&](auto d, size_t i, auto value) HWY_ATTR {
    hn::StoreU(first ? value : hn::Add(hn::LoadU(d, sums + i), value), d, sums + i);
  });
  return from + group_bytes(type, header.bits);
}

template <PackedType type>
void add_groups(std::span<const PackedRun> payloads, std::span<float> out, bool accumulate, bool stream) {
  const uint8_t* from[kMostPackedRuns];
  for (size_t p = 0; p < payloads.size(); ++p) from[p] = reinterpret_cast<const uint8_t*>(payloads[p].groups);
  Output<float> tiles(out.data(), stream);
  for (size_t begin = 0; begin < out.size(); begin += kTile) {
    const size_t count = std::min(kTile, out.size() - begin);
    float* const tile = tiles.tile(begin);
    if (accumulate && tile != out.data() + begin) std::copy_n(out.data() + begin, count, tile);
    const size_t groups = (count + kGroup - 1) / kGroup, whole = count / kGroup;
    for (size_t p = 0; p < payloads.size(); ++p) {
      const GroupHeader* const headers = payloads[p].headers + begin / kGroup;
      const bool first = p == 0 && !accumulate;
      for (size_t g = 0; g < whole; ++g) from[p] = add_group<type>(from[p], headers[g], first, tile + g * kGroup);
      if (whole == groups) continue;
      float sums[kGroup] = {};
      const size_t rest = count - whole * kGroup;
      if (!first) std::copy_n(tile + whole * kGroup, rest, sums);
      add_group<type>(from[p], headers[whole], first, sums);
      std::copy_n(sums, rest, tile + whole * kGroup);
    }
    tiles.finish_tile(count);
  }
}

PackedHeaders write_any_headers(PackedType type, const EncodeRun& run, bool stream, GroupHeader* headers) {
  return type == PackedType::f32 ? write_group_headers<PackedType::f32>(run, stream, headers)
                                 : write_group_headers<PackedType::bf16>(run, stream, headers);
}

void write_any_groups(PackedType type, const EncodeRun& run, bool stream, const GroupHeader* headers, std::byte* to) {
  type == PackedType::f32 ? write_groups<PackedType::f32>(run, stream, headers, to)
                          : write_groups<PackedType::bf16>(run, stream, headers, to);
}

void add_any_groups(PackedType type, std::span<const PackedRun> payloads, std::span<float> out, bool accumulate,
                    bool stream) {
  type == PackedType::f32 ? add_groups<PackedType::f32>(payloads, out, accumulate, stream)
                          : add_groups<PackedType::bf16>(payloads, out, accumulate, stream);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(write_any_headers);
HWY_EXPORT(write_any_groups);
HWY_EXPORT(add_any_groups);

PackedHeaders write_group_headers(PackedType type, const EncodeRun& run, bool stream, GroupHeader* headers) {
  return HWY_DYNAMIC_DISPATCH(write_any_headers)(type, run, stream, headers);
}

void write_groups(PackedType type, const EncodeRun& run, bool stream, const GroupHeader* headers, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(write_any_groups)(type, run, stream, headers, to);
}

void add_groups(PackedType type, std::span<const PackedRun> payloads, std::span<float> out, bool accumulate,
                bool stream) {
  HWY_DYNAMIC_DISPATCH(add_any_groups)(type, payloads, out, accumulate, stream);
}

}  // namespace gradtune::compress
#endif
