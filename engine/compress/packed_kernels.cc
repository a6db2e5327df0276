// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/packed_kernels.h"

#include <bit>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/packed_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/planes-inl.h"
#include "engine/compress/simd-inl.h"

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

template <class V>
HWY_INLINE V exponent_of(V bits) {
  const hn::DFromV<V> du;
  return hn::And(hn::ShiftRight<23>(bits), hn::Set(du, 0xff));
}

struct Range {
  uint32_t any, most, least;  // bits that are set anywhere; exponents; the least one that is not 0, less 1
};

// What is missed of element i, if it is kept.
template <class D, class V>
HWY_INLINE void write_error(D d, const EncodeRun& run, size_t i, V bits) {
  if (run.residual_next == nullptr) return;
  const auto sent = hn::Mul(load_p(d, run.gradient, run.residual, i), hn::Set(d, run.scale));
  auto missed = hn::Mul(hn::Sub(sent, hn::BitCast(d, bits)), hn::Set(d, run.error_scale));
  if (run.add_to_residual_next) missed = hn::Add(hn::LoadU(d, run.residual_next + i), missed);
  hn::StoreU(missed, d, run.residual_next + i);
}

template <PackedType type>
HWY_INLINE Range range_of(const EncodeRun& run, size_t begin, size_t n) {
  const hn::CappedTag<float, kGroup> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  auto any = hn::Zero(du), most = any, least = hn::Set(du, ~0U);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    prefetch_p(d, run.gradient, run.residual, begin + i + kAhead);
    const auto bits = sent_bits<type>(d, run, begin + i);
    write_error(d, run, begin + i, bits);
    const auto exponent = exponent_of(bits);
    any = hn::Or(any, bits);
    most = hn::Max(most, exponent);
    least = hn::Min(least, hn::Sub(exponent, hn::Set(du, 1)));
  }
  // The bits of the largest word are not those of all, but there are some or none in both.
  Range range{hn::GetLane(hn::MaxOfLanes(du, any)), hn::GetLane(hn::MaxOfLanes(du, most)),
              hn::GetLane(hn::MinOfLanes(du, least))};
  const hn::CappedTag<float, 1> lane;
  for (; i < n; ++i) {
    const auto bits = sent_bits<type>(lane, run, begin + i);
    write_error(lane, run, begin + i, bits);
    const uint32_t exponent = hn::GetLane(exponent_of(bits));
    range = {range.any | hn::GetLane(bits), std::max(range.most, exponent), std::min(range.least, exponent - 1)};
  }
  return range;
}

template <PackedType type>
PackedHeaders write_group_headers(const EncodeRun run, GroupHeader* headers) {
  PackedHeaders all{0, true};
  for (size_t begin = 0; begin < run.n; begin += kGroup) {
    const Range range = range_of<type>(run, begin, std::min(kGroup, run.n - begin));
    GroupHeader header{.base = 0, .bits = GroupHeader::kNoGroup};
    if (range.any != 0) {
      const uint32_t base = range.most == 0 ? 0 : range.least;
      header = {static_cast<uint8_t>(base), static_cast<uint8_t>(std::bit_width(range.most - base))};
    }
    all.finite &= range.most != 0xff;
    all.bytes += group_bytes(type, header.bits);
    *headers++ = header;
  }
  return all;
}

// What an element is made of, to be stored, or loaded.
struct Parts {
  HWY_ALIGN uint8_t codes[kGroup];
  HWY_ALIGN uint8_t high[kGroup];
  HWY_ALIGN uint16_t low[kGroup];
};

template <PackedType type, class D>
HWY_INLINE void take_apart(D d, const EncodeRun& run, size_t element, uint32_t base, size_t i, Parts& parts) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> d8;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = sent_bits<type>(d, run, element);
  const auto exponent = exponent_of(bits);
  const auto code = hn::IfThenZeroElse(hn::Eq(exponent, hn::Zero(du)), hn::Sub(exponent, hn::Set(du, base)));
  const auto high = hn::Or(hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80)),
                           hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x7f)));
  hn::StoreU(hn::U8FromU32(code), d8, parts.codes + i);
  hn::StoreU(hn::U8FromU32(high), d8, parts.high + i);
  if constexpr (type == PackedType::f32) {
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::And(bits, hn::Set(du, 0xffff)))), d16, parts.low + i);
  }
}

template <PackedType type>
void write_groups(const EncodeRun run, const GroupHeader* headers, std::byte* out) {
  const hn::CappedTag<float, kGroup> d;
  const hn::CappedTag<float, 1> lane;
  auto* to = reinterpret_cast<uint8_t*>(out);
  Parts parts;
  for (size_t begin = 0; begin < run.n; begin += kGroup, ++headers) {
    if (headers->bits == GroupHeader::kNoGroup) continue;
    const uint32_t base = headers->base;
    const size_t n = std::min(kGroup, run.n - begin);
    if (n < kGroup) parts = {};
    size_t i = 0;
    for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) take_apart<type>(d, run, begin + i, base, i, parts);
    for (; i < n; ++i) take_apart<type>(lane, run, begin + i, base, i, parts);
    pack_planes(parts.codes, kGroup, headers->bits, to);
    to += size_t{headers->bits} * 8;
    std::memcpy(to, parts.high, sizeof parts.high);
    to += sizeof parts.high;
    if constexpr (type == PackedType::f32) {
      std::memcpy(to, parts.low, sizeof parts.low);
      to += sizeof parts.low;
    }
  }
}

// The values at i of a group.
template <PackedType type, class D>
HWY_INLINE hn::Vec<D> put_together(D d, const uint8_t* codes, const uint8_t* high, uint32_t base, size_t i) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint8_t, D> d8;
  const hn::Rebind<uint16_t, D> d16;
  const auto code = hn::PromoteTo(du, hn::LoadU(d8, codes + i));
  // What no encoder sends goes round, and stays an exponent.
  const auto exponent =
      hn::IfThenZeroElse(hn::Eq(code, hn::Zero(du)), hn::And(hn::Add(code, hn::Set(du, base)), hn::Set(du, 0xff)));
  const auto upper = hn::PromoteTo(du, hn::LoadU(d8, high + i));
  auto bits = hn::Or(hn::ShiftLeft<24>(hn::And(upper, hn::Set(du, 0x80))),
                     hn::ShiftLeft<16>(hn::And(upper, hn::Set(du, 0x7f))));
  bits = hn::Or(bits, hn::ShiftLeft<23>(exponent));
  if constexpr (type == PackedType::f32) {
    uint16_t low[hn::MaxLanes(d)];
    std::memcpy(low, high + kGroup + 2 * i, sizeof low);  // two bytes each, wherever they are
    bits = hn::Or(bits, hn::PromoteTo(du, hn::LoadU(d16, low)));
  }
  return hn::BitCast(d, bits);
}

// sums += the values of a group; of `first`, nothing is there yet. Returns where the next group begins.
template <PackedType type>
HWY_INLINE const uint8_t* add_group(const uint8_t* from, const GroupHeader header, bool first, float* sums) {
  const hn::CappedTag<float, kGroup> d;
  if (header.bits == GroupHeader::kNoGroup) {
    if (first) std::fill(sums, sums + kGroup, 0.0F);
    return from;
  }
  HWY_ALIGN uint8_t codes[kGroup];
  unpack_planes(from, kGroup, header.bits, codes);
  const uint8_t* const high = from + size_t{header.bits} * 8;
  for (size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
    auto value = put_together<type>(d, codes, high, header.base, i);
    if (!first) value = hn::Add(hn::LoadU(d, sums + i), value);
    hn::StoreU(value, d, sums + i);
  }
  return from + group_bytes(type, header.bits);
}

// Group `group` of so many payloads, which begin there, in their order.
template <PackedType type>
HWY_INLINE void add_group_of_all(std::span<const PackedRun> payloads, size_t group, const uint8_t** from, bool adds,
                                 float* sums) {
  for (size_t p = 0; p < payloads.size(); ++p) {
    from[p] = add_group<type>(from[p], payloads[p].headers[group], p == 0 && !adds, sums);
  }
}

template <PackedType type>
void add_groups(std::span<const PackedRun> payloads, std::span<float> out, bool accumulate) {
  // Runs are short, so of many payloads some are added to what the others left in `out`.
  for (size_t first = 0; first < payloads.size(); first += kAtOnce) {
    const auto some = payloads.subspan(first, std::min(kAtOnce, payloads.size() - first));
    const bool adds = accumulate || first > 0;
    const uint8_t* from[kAtOnce];
    for (size_t p = 0; p < some.size(); ++p) from[p] = reinterpret_cast<const uint8_t*>(some[p].groups);
    const size_t whole = out.size() / kGroup;
    for (size_t g = 0; g < whole; ++g) add_group_of_all<type>(some, g, from, adds, out.data() + g * kGroup);
    const size_t rest = out.size() - whole * kGroup;
    if (rest == 0) continue;
    float sums[kGroup] = {};
    std::memcpy(sums, out.data() + whole * kGroup, rest * sizeof(float));
    add_group_of_all<type>(some, whole, from, adds, sums);
    std::memcpy(out.data() + whole * kGroup, sums, rest * sizeof(float));
  }
}

PackedHeaders write_any_headers(PackedType type, const EncodeRun& run, GroupHeader* headers) {
  return type == PackedType::f32 ? write_group_headers<PackedType::f32>(run, headers)
                                 : write_group_headers<PackedType::bf16>(run, headers);
}

void write_any_groups(PackedType type, const EncodeRun& run, const GroupHeader* headers, std::byte* to) {
  type == PackedType::f32 ? write_groups<PackedType::f32>(run, headers, to)
                          : write_groups<PackedType::bf16>(run, headers, to);
}

void add_any_groups(PackedType type, std::span<const PackedRun> payloads, std::span<float> out, bool accumulate) {
  type == PackedType::f32 ? add_groups<PackedType::f32>(payloads, out, accumulate)
                          : add_groups<PackedType::bf16>(payloads, out, accumulate);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(write_any_headers);
HWY_EXPORT(write_any_groups);
HWY_EXPORT(add_any_groups);

PackedHeaders write_group_headers(PackedType type, const EncodeRun& run, GroupHeader* headers) {
  return HWY_DYNAMIC_DISPATCH(write_any_headers)(type, run, headers);
}

void write_groups(PackedType type, const EncodeRun& run, const GroupHeader* headers, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(write_any_groups)(type, run, headers, to);
}

void add_groups(PackedType type, std::span<const PackedRun> payloads, std::span<float> out, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(add_any_groups)(type, payloads, out, accumulate);
}

}  // namespace gradtune::compress
#endif
