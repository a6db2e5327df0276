// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/codes/block_codes_kernels.h"

#include <bit>
#include <cfloat>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/codes/block_codes_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/codes/codes-inl.h"
#include "engine/compress/simd/bit_sums-inl.h"
#include "engine/compress/simd/planes-inl.h"
#include "engine/compress/simd/random-inl.h"
#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// --- Norms. They do not depend on the size of vectors.

HWY_INLINE float largest_magnitude(const float* gradient, const float* residual, size_t n) {
  const uint32_t bits =
      largest_of(n, [&](auto d, size_t i) HWY_ATTR { return abs_bits(d, load_p(d, gradient, residual, i)); });
  return std::bit_cast<float>(bits);
}

// --- Runs. They come by value: what the compiler keeps in registers no store can change.

// Blocks of which more than one make a tile, and room for a vector of them.
constexpr size_t kMostBlocks = std::max<size_t>(kTile / kPlaneElements, 16);

// Units of some blocks, and what to multiply elements by.
struct Units {
  HWY_ALIGN float units[kMostBlocks];
  HWY_ALIGN float inverses[kMostBlocks];
};

// The next bfloat16 that is not smaller, of positive numbers.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V bf16_above(D d, V v) {
  const hn::RebindToUnsigned<D> du;
  const auto raised = hn::Add(hn::BitCast(du, v), hn::Set(du, 0xffff));
  return hn::BitCast(d, hn::And(raised, hn::Set(du, 0xffff0000)));
}

// Makes and writes the units of the blocks of [begin, end); returns whether all is finite.
template <class Codes>
bool write_units(const Codes& codes, const CodeFormat& format, const EncodeRun& run, const CodeTarget& to, size_t begin,
                 size_t end, Units& made) {
  size_t blocks = 0;
  const bool is_bf16 = format.unit == CodeFormat::Unit::bf16;
  for_parts(begin, end, to.block, [&](size_t /*block*/, size_t from, size_t stop) HWY_ATTR {
    const auto* gradient = run.gradient + from;
    const auto* residual = offset(run.residual, from);
    const float of_block = format.norm == CodeFormat::Norm::largest ? largest_magnitude(gradient, residual, stop - from)
                                                                    : quick_norm(gradient, residual, stop - from);
    made.units[blocks++] = of_block * run.scale;
  });
  bool finite = true;
  for_vectors(blocks, [&](auto d, size_t i) HWY_ATTR {
    const auto sent = hn::LoadU(d, made.units + i);
    auto unit = codes.unit(d, sent);
    if (is_bf16) unit = bf16_above(d, unit);
    const auto largest = hn::Mul(unit, hn::Set(d, codes.largest_value()));
    const auto good = hn::And(hn::IsFinite(sent), hn::IsFinite(largest));
    finite &= hn::AllTrue(d, good);
    const auto written = hn::IfThenElseZero(hn::And(good, hn::Ge(unit, hn::Set(d, FLT_MIN))), unit);
    hn::StoreU(written, d, made.units + i);
    hn::StoreU(hn::Div(hn::Set(d, 1.0F), written), d, made.inverses + i);
  });
  std::byte* const place = to.units + begin / to.block * static_cast<size_t>(unit_bytes(format.unit));
  for (size_t i = 0; is_bf16 && i < blocks; ++i) {
    const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(made.units[i]) >> 16);
    std::memcpy(place + i * sizeof bits, &bits, sizeof bits);
  }
  if (!is_bf16) std::memcpy(place, made.units, blocks * sizeof(float));
  return finite;
}

template <class Codes>
HWY_INLINE void write_codes(const Codes codes, const EncodeRun run, float unit, float inverse, size_t from, size_t to,
                            const uint16_t* random, uint8_t* code, float* error) {
  const float* gradient = run.gradient + from;
  const float* residual = offset(run.residual, from);
  for_vectors(to - from, [&](auto d, size_t i) HWY_ATTR {
    prefetch_behind(d, gradient, residual, i);
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    const hn::Rebind<uint16_t, decltype(d)> d16;
    const auto sent = hn::Mul(load_p(d, gradient, residual, i), hn::Set(d, run.scale));
    auto bits = hn::Zero(di);
    if constexpr (Codes::kRandom) bits = hn::PromoteTo(di, hn::LoadU(d16, random + i));
    auto value = sent;
    const auto chosen = codes.encode(d, hn::Mul(sent, hn::Set(d, inverse)), bits, value);
    hn::StoreU(hn::U8FromU32(hn::BitCast(hn::RebindToUnsigned<decltype(d)>(), chosen)), d8, code + i);
    if (error != nullptr) {
      auto missed = hn::Mul(hn::Sub(sent, hn::Mul(value, hn::Set(d, unit))), hn::Set(d, run.error_scale));
      if (run.add_to_residual_next) missed = hn::Add(hn::LoadU(d, error + i), missed);
      hn::StoreU(missed, d, error + i);
    }
  });
}

template <class Codes>
bool encode_run(const CodeFormat format, const EncodeRun run, const CodeTarget to) {
  const Codes codes(format.bits);
  const auto bits = static_cast<size_t>(format.stored_bits());
  Output<uint8_t> out(to.codes, to.stream && to.stream_codes);
  Output<float> errors(run.residual_next, to.stream && !run.add_to_residual_next);
  RandomTile<> randoms(to.random);
  HWY_ALIGN uint8_t unpacked[kTile];
  Units units;  // of a group
  const auto encode_tile = [&](size_t begin, size_t count, size_t first_block) HWY_ATTR {
    const uint16_t* random = Codes::kRandom ? randoms.bits(to.first_element + begin, count) : nullptr;
    uint8_t* const place = out.tile(begin / 8 * bits);
    uint8_t* const code = bits == 8 ? place : unpacked;
    float* const error = errors.tile(begin);
    for_parts(begin, begin + count, to.block, [&](size_t block, size_t from, size_t stop) HWY_ATTR {
      const size_t at = from - begin;
      const float unit = units.units[block - first_block], inverse = units.inverses[block - first_block];
      if (unit > 0) {
        write_codes(codes, run, unit, inverse, from, stop, offset(random, at), code + at, offset(error, at));
      } else {
        write_codes(Zeros(codes.zero_code()), run, 0, 0, from, stop, nullptr, code + at, offset(error, at));
      }
    });
    if (bits < 8) pack_planes(unpacked, count, format.bits, place);
    out.finish_tile(static_cast<size_t>(code_bytes(count, format.stored_bits())));
    errors.finish_tile(count);
  };
  bool finite = true;
  // Codes need the unit, so blocks are read twice, as many of them at a time as make a tile: still in the cache.
  const size_t group = std::max(to.block, kTile / to.block * to.block);
  for (size_t begin = 0; begin < run.n; begin += group) {
    const size_t end = std::min(run.n, begin + group);
    finite &= write_units(codes, format, run, to, begin, end, units);
    for (size_t tile = begin; tile < end; tile += kTile) {
      encode_tile(tile, std::min(kTile, end - tile), begin / to.block);
    }
  }
  return finite;
}

// The begins of a run's units and of a tile's codes, for several payloads.
struct Parts {
  CodeFormat::Unit type = CodeFormat::Unit::f32;
  const std::byte* units[kAtOnce] = {};
  const uint8_t* codes[kAtOnce] = {};

  HWY_INLINE float unit(size_t payload, size_t block) const {
    if (type == CodeFormat::Unit::f32) {
      float unit;
      std::memcpy(&unit, units[payload] + block * sizeof unit, sizeof unit);
      return unit;
    }
    uint16_t bits;
    std::memcpy(&bits, units[payload] + block * sizeof bits, sizeof bits);
    return std::bit_cast<float>(uint32_t{bits} << 16);
  }
};

// True if an encoder may have sent all of these codes.
template <class Codes>
HWY_INLINE bool are_sent(const Codes& codes, const uint8_t* from, size_t n) {
  bool good = true;
  for (size_t i = 0; i < n; ++i) good &= (from[i] & codes.code_mask()) <= codes.largest_code();
  return good;
}

// to = (old == nullptr ? 0 : old) + the values of so many payloads, in their order, of a tile. Returns whether an
// encoder may have sent all of their codes, which are looked at while they are at hand.
template <size_t kCount, class Codes>
HWY_INLINE bool add_tile(const Codes codes, size_t block_size, const Parts parts, size_t begin, size_t end,
                         const float* old, const Place to) {
  const hn::CappedTag<uint8_t, kPlaneElements> d8;
  const auto mask = hn::Set(d8, static_cast<uint8_t>(codes.code_mask())),
             most = hn::Set(d8, static_cast<uint8_t>(codes.largest_code()));
  const bool all_are_sent = codes.code_mask() == codes.largest_code();
  auto largest = most;
  bool good = true;
  for_parts(begin, end, block_size, [&](size_t block, size_t from, size_t stop) HWY_ATTR {
    float steps[kCount];
    for (size_t p = 0; p < kCount; ++p) steps[p] = codes.step(parts.unit(p, block));
    const auto add = [&](auto d, size_t i) HWY_ATTR {
      auto sum = codes.decoded(d, parts.codes[0], i, hn::Set(d, steps[0]));
      if (old != nullptr) sum = hn::Add(hn::LoadU(d, old + i), sum);
      for (size_t p = 1; p < kCount; ++p) {
        sum = hn::Add(sum, codes.decoded(d, parts.codes[p], i, hn::Set(d, steps[p])));
      }
      to.store(sum, d, i);
    };
    size_t i = from - begin;
    for (const size_t last = stop - begin; i < last; i += kPlaneElements) {
      const size_t n = std::min<size_t>(kPlaneElements, last - i);
      for (size_t p = 0; p < kCount; ++p) hwy::Prefetch(parts.codes[p] + i + kAhead);
      for_vectors(n, [&](auto d, size_t j) HWY_ATTR { add(d, i + j); });
      for (size_t p = 0; !all_are_sent && p < kCount; ++p) {
        const uint8_t* const at = parts.codes[p] + i;
        if (n < kPlaneElements) {
          good &= are_sent(codes, at, n);
          continue;
        }
        for (size_t j = 0; j < kPlaneElements; j += hn::Lanes(d8)) {
          largest = hn::Max(largest, hn::And(hn::LoadU(d8, at + j), mask));
        }
      }
    }
  });
  return good && hn::AllTrue(d8, hn::Eq(largest, most));
}

HWY_INLINE bool are_sent(const Ternary& /*codes*/, const uint8_t* planes, size_t n) {
  const BitPlanes d;
  const size_t words = (n + kPlaneElements - 1) / kPlaneElements;
  auto both = hn::Zero(d);
  size_t word = 0;
  for (; word + hn::Lanes(d) <= words; word += hn::Lanes(d)) {
    both = hn::Or(both, hn::And(plane_of_two(planes, 0, word), plane_of_two(planes, 1, word)));
  }
  uint64_t last = 0;
  for (; word < words; ++word) {
    uint64_t pair[2];
    std::memcpy(pair, planes + word * sizeof pair, sizeof pair);
    last |= pair[0] & pair[1];
  }
  return last == 0 && hn::AllTrue(d, hn::Eq(both, hn::Zero(d)));
}

// Payloads with ternary codes: the bits of two payloads make a nibble.
struct TernaryParts {
  const Parts& parts;

  template <size_t kCount>
  HWY_INLINE hn::Vec<BitPlanes> plane(size_t first, size_t bit, size_t word) const {
    return bit / 2 < kCount ? plane_of_two(parts.codes[first + bit / 2], bit % 2, word) : hn::Zero(BitPlanes());
  }

  template <size_t kCount, class D, class V>
  HWY_INLINE hn::Vec<D> sum(D d, size_t first, size_t block, V nibbles) const {
    auto sum = hn::Zero(d);
    for (size_t p = 0; p < kCount; ++p) {
      const auto step = hn::Set(d, parts.unit(first + p, block));
      const auto value = Ternary::value(has_bit(d, nibbles, 2 * p), has_bit(d, nibbles, 2 * p + 1), step);
      sum = p == 0 ? value : hn::Add(sum, value);
    }
    return sum;
  }
};

// The same of ternary codes, of which the values of each two payloads are added up first.
template <size_t kCount>
HWY_INLINE bool add_tile(const Ternary& /*codes*/, size_t block_size, const Parts& parts, size_t begin, size_t end,
                         const float* old, const Place to) {
  add_by_bits<2, kCount>(TernaryParts{parts}, block_size, begin, end, old, to);
  bool good = true;
  for (size_t p = 0; p < kCount; ++p) good &= are_sent(Ternary(2), parts.codes[p], end - begin);
  return good;
}

template <class Codes>
size_t decode_run(const CodeFormat format, const CodeDecode run) {
  const Codes codes(format.bits);
  SumOutput out(run.out, run.stream, run.block);
  const size_t whole = tile_of(run.payloads.size());
  HWY_ALIGN uint8_t unpacked[kAtOnce][kMostOfTile];
  const int bits = format.stored_bits();
  size_t bad = run.payloads.size();
  for (size_t begin = 0; begin < run.n; begin += whole) {
    const size_t count = std::min(whole, run.n - begin);
    const float* old = run.accumulate ? run.out + begin : nullptr;
    for (size_t first = 0; first < run.payloads.size();) {
      const auto payloads = run.payloads.subspan(first, at_once(run.payloads.size() - first));
      Parts parts{.type = format.unit};
      for (size_t p = 0; p < payloads.size(); ++p) {
        const std::byte* const payload = payloads[p].data();
        parts.units[p] = payload + run.units_at;
        parts.codes[p] = reinterpret_cast<const uint8_t*>(payload + run.codes_at) + begin / 8 * bits;
        const auto tile_bytes = static_cast<size_t>(code_bytes(static_cast<int64_t>(whole), bits));
        for (size_t line = 0; bits < 8 && line < tile_bytes; line += 64) {
          hwy::Prefetch(parts.codes[p] + 2 * tile_bytes + line);  // of others those who add them do
        }
        if (bits < Codes::kBits) {
          unpack_planes(parts.codes[p], count, bits, unpacked[p]);
          parts.codes[p] = unpacked[p];
        } else if (Codes::kBits < 8 && count < whole) {  // what reads planes reads those of a whole tile
          std::memcpy(unpacked[p], parts.codes[p], code_bytes(count, bits));
          parts.codes[p] = unpacked[p];
        }
      }
      const Place to = out.pass(begin, first + payloads.size() == run.payloads.size());
      bool good = true;
      with_count(payloads.size(), [&](auto of) HWY_ATTR {
        good = add_tile<of()>(codes, run.block, parts, begin, begin + count, old, to);
      });
      for (size_t p = 0; !good && p < payloads.size(); ++p) {
        if (!are_sent(codes, parts.codes[p], count)) bad = std::min(bad, first + p);
      }
      first += payloads.size();
      old = to.to;
    }
    out.finish_tile(count);
  }
  return bad;
}

using Nearest = Integers<false>;
using Stochastic = Integers<true>;
using E4M3 = Floats<3, 0x7e>;
using E5M2 = Floats<2, 0x7b>;

bool encode_any(const CodeFormat& format, const EncodeRun& run, const CodeTarget& to) {
  switch (format.codes) {
    case CodeFormat::Codes::nearest: return encode_run<Nearest>(format, run, to);
    case CodeFormat::Codes::stochastic: return encode_run<Stochastic>(format, run, to);
    case CodeFormat::Codes::e4m3: return encode_run<E4M3>(format, run, to);
    case CodeFormat::Codes::e5m2: return encode_run<E5M2>(format, run, to);
    case CodeFormat::Codes::power: return encode_run<Powers>(format, run, to);
  }
  return false;
}

size_t decode_any(const CodeFormat& format, const CodeDecode& run) {
  switch (format.codes) {
    case CodeFormat::Codes::nearest: return decode_run<Nearest>(format, run);
    case CodeFormat::Codes::stochastic:
      return format.bits == Ternary::kBits ? decode_run<Ternary>(format, run) : decode_run<Stochastic>(format, run);
    case CodeFormat::Codes::e4m3: return decode_run<E4M3>(format, run);
    case CodeFormat::Codes::e5m2: return decode_run<E5M2>(format, run);
    case CodeFormat::Codes::power: return decode_run<Powers>(format, run);
  }
  return 0;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(encode_any);
HWY_EXPORT(decode_any);

bool encode_codes(const CodeFormat& format, const EncodeRun& run, const CodeTarget& to) {
  return HWY_DYNAMIC_DISPATCH(encode_any)(format, run, to);
}

size_t decode_codes(const CodeFormat& format, const CodeDecode& run) {
  return HWY_DYNAMIC_DISPATCH(decode_any)(format, run);
}

}  // namespace gradtune::compress
#endif
