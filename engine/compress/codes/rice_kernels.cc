// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/codes/rice_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/codes/rice_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/simd-inl.h"

#if HWY_ARCH_X86_64
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

using Magnitudes = hn::CappedTag<uint8_t, kRiceGroup>;

constexpr uint64_t kNothing = 7;  // in place of k

// The bits of `word` at the bits of `mask`, side by side; and back.
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2
HWY_INLINE uint64_t gather_bits(uint64_t word, uint64_t mask) { return _pext_u64(word, mask); }
HWY_INLINE uint64_t scatter_bits(uint64_t bits, uint64_t mask) { return _pdep_u64(bits, mask); }
#else
HWY_INLINE uint64_t gather_bits(uint64_t word, uint64_t mask) {
  uint64_t bits = 0;
  for (int i = 0; mask != 0; mask &= mask - 1, ++i) bits |= (word >> std::countr_zero(mask) & 1) << i;
  return bits;
}
HWY_INLINE uint64_t scatter_bits(uint64_t bits, uint64_t mask) {
  uint64_t word = 0;
  for (; mask != 0; mask &= mask - 1, bits >>= 1) word |= (bits & 1) << std::countr_zero(mask);
  return word;
}
#endif

constexpr uint64_t first_bits(size_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// Whole words reach memory; what is left at the end is one more.
class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : begin_(to), to_(to) {}

  // The lowest n <= 64 bits of `bits`, which has no others.
  HWY_INLINE void put(uint64_t bits, size_t n) {
    const uint64_t low = word_ | bits << filled_, high = bits >> 1 >> (63 - filled_);
    std::memcpy(to_, &low, sizeof low);
    const size_t filled = filled_ + n;
    const bool is_full = filled >= 64;
    word_ = is_full ? high : low;
    to_ += is_full ? sizeof low : 0;
    filled_ = filled & 63;
  }

  size_t bits() const { return static_cast<size_t>(to_ - begin_) * 8 + filled_; }

  size_t finish() {
    std::memcpy(to_, &word_, sizeof word_);
    return static_cast<size_t>(to_ - begin_) + (filled_ > 0 ? sizeof word_ : 0);
  }

 private:
  std::byte* begin_;
  std::byte* to_;
  uint64_t word_ = 0;
  size_t filled_ = 0;
};

class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> from) : from_(from), end_(from.size() * 8) {}

  // The next n <= 64 bits; behind the end whatever is there.
  HWY_INLINE uint64_t get(size_t n) {
    const std::byte* const at = from_.data() + std::min(position_, end_) / 8;
    const size_t skipped = position_ % 8;
    uint64_t low, high;
    std::memcpy(&low, at, sizeof low);
    std::memcpy(&high, at + sizeof low, sizeof high);
    position_ += n;
    return (low >> skipped | high << 1 << (63 - skipped)) & first_bits(n);
  }

  size_t bits() const { return position_; }
  bool is_at_end() const { return (position_ + 63) / 64 * 64 == end_; }

 private:
  std::span<const std::byte> from_;
  size_t position_ = 0, end_;
};

// The elements, of 64, for which the test is true; one bit each.
template <class Test>
HWY_INLINE uint64_t word_of(const Test& test) {
  const Magnitudes d;
  uint64_t word = 0;
  for (size_t lane = 0; lane < kRiceGroup; lane += hn::Lanes(d)) word |= bits_of(d, test(d, lane)) << lane;
  return word;
}

// The k whose low bits and unary digits take the fewest bits together.
template <int kBits>
HWY_INLINE int best_k(const uint64_t (&planes)[kBits - 1], size_t n) {
  size_t least = ~size_t{0};
  int best = 0;
  size_t sum = 0;               // of m >> k
  uint64_t top = ~uint64_t{0};  // where m >> k is the largest there is, and has no digit that ends it
  size_t costs[kBits - 1];
  for (int k = kBits - 2; k >= 0; --k) {
    sum = 2 * sum + static_cast<size_t>(std::popcount(planes[k]));
    top &= planes[k];
    costs[k] = static_cast<size_t>(k) * n + sum + n - static_cast<size_t>(std::popcount(top));
  }
  for (int k = 0; k <= kBits - 2; ++k) {
    best = costs[k] < least ? k : best;
    least = std::min(least, costs[k]);
  }
  return best;
}

template <int kBits>
HWY_INLINE void put_group(const uint8_t* codes, size_t n, BitWriter& out) {
  constexpr uint8_t kLargest = (1 << (kBits - 1)) - 1;
  const Magnitudes d;
  HWY_ALIGN uint8_t m[kRiceGroup];
  const auto zero = hn::Set(d, kLargest);
  const uint64_t negative = word_of([&](auto of, size_t lane) HWY_ATTR {
    const auto code = hn::LoadU(of, codes + lane);
    hn::Store(hn::Sub(hn::Max(code, zero), hn::Min(code, zero)), of, m + lane);
    return hn::Lt(code, zero);
  });
  uint64_t planes[kBits - 1], some = 0;
  for (int bit = 0; bit < kBits - 1; ++bit) {
    const auto of_bit = hn::Set(d, static_cast<uint8_t>(1 << bit));
    planes[bit] = word_of([&](auto of, size_t lane) HWY_ATTR { return hn::TestBit(hn::Load(of, m + lane), of_bit); });
    some |= planes[bit];
  }
  if (some == 0) return out.put(kNothing, 3);
  const int k = best_k<kBits>(planes, n);
  out.put(static_cast<uint64_t>(k), 3);
  for (int bit = 0; bit < k; ++bit) out.put(planes[bit], n);
  uint64_t alive = first_bits(n);
  for (int j = 0, top = kLargest >> k; j < top && alive != 0; ++j) {
    const auto below = hn::Set(d, static_cast<uint8_t>(((j + 1) << k) - 1));
    const uint64_t next = word_of([&](auto of, size_t lane) HWY_ATTR { return hn::Gt(hn::Load(of, m + lane), below); });
    out.put(gather_bits(next, alive), static_cast<size_t>(std::popcount(alive)));
    alive = next;
  }
  out.put(gather_bits(negative, some), static_cast<size_t>(std::popcount(some)));
}

// Adds `value` to the bytes at the bits of `word`.
HWY_INLINE void add_at(uint64_t word, uint8_t value, uint8_t* m) {
  const Magnitudes d;
  for (size_t lane = 0; lane < kRiceGroup; lane += hn::Lanes(d)) {
    const uint64_t bits = word >> lane;
    const auto at = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&bits));
    hn::Store(hn::Add(hn::Load(d, m + lane), hn::IfThenElseZero(at, hn::Set(d, value))), d, m + lane);
  }
}

template <int kBits>
HWY_INLINE bool get_group(BitReader& in, size_t n, uint8_t* codes) {
  constexpr uint8_t kLargest = (1 << (kBits - 1)) - 1;
  const Magnitudes d;
  HWY_ALIGN uint8_t m[kRiceGroup] = {};
  uint64_t negative = 0;
  const uint64_t said = in.get(3);
  if (said != kNothing) {
    const int k = static_cast<int>(std::min<uint64_t>(said, kBits - 2));
    uint64_t some = 0;
    for (int bit = 0; bit < k; ++bit) {
      const uint64_t plane = in.get(n);
      add_at(plane, static_cast<uint8_t>(1 << bit), m);
      some |= plane;
    }
    uint64_t alive = first_bits(n);
    for (int j = 0, top = kLargest >> k; j < top && alive != 0; ++j) {
      alive = scatter_bits(in.get(static_cast<size_t>(std::popcount(alive))), alive);
      add_at(alive, static_cast<uint8_t>(1 << k), m);
      some |= alive;
    }
    negative = scatter_bits(in.get(static_cast<size_t>(std::popcount(some))), some);
  }
  const auto zero = hn::Set(d, kLargest);
  for (size_t lane = 0; lane < kRiceGroup; lane += hn::Lanes(d)) {
    const uint64_t bits = negative >> lane;
    const auto is_negative = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&bits));
    const auto magnitude = hn::Load(d, m + lane);
    hn::StoreU(hn::IfThenElse(is_negative, hn::Sub(zero, magnitude), hn::Add(zero, magnitude)), d, codes + lane);
  }
  return said == kNothing || said <= kBits - 2;
}

// The begins of parts, in bits behind the table.
using Begins = std::array<uint16_t, kMostRiceElements / kRicePart>;

template <int kBits>
size_t pack(uint8_t* codes, size_t n, std::byte* to) {
  std::fill(codes + n, codes + core::round_up(static_cast<int64_t>(n), kRiceGroup),
            static_cast<uint8_t>((1 << (kBits - 1)) - 1));
  const auto table = static_cast<size_t>(rice_table_bits(static_cast<int64_t>(n)));
  Begins begins;
  BitWriter out(to);
  for (size_t bit = 0; bit < table; bit += kRiceBeginBits) out.put(0, kRiceBeginBits);
  for (size_t i = 0; i < n; i += kRiceGroup) {
    if (i % kRicePart == 0) begins[i / kRicePart] = static_cast<uint16_t>(out.bits() - table);
    put_group<kBits>(codes + i, std::min<size_t>(kRiceGroup, n - i), out);
  }
  const size_t bytes = out.finish();
  std::memcpy(to, begins.data() + 1, table / 8);
  return bytes;
}

template <int kBits>
bool unpack(std::span<const std::byte> from, size_t n, uint8_t* codes) {
  const auto table = static_cast<size_t>(rice_table_bits(static_cast<int64_t>(n)));
  Begins begins = {};
  BitReader in(from);
  for (size_t part = 1; in.bits() < table; ++part) begins[part] = static_cast<uint16_t>(in.get(kRiceBeginBits));
  bool is_good = true;
  for (size_t i = 0; i < n; i += kRiceGroup) {
    if (i % kRicePart == 0) is_good &= in.bits() == table + begins[i / kRicePart];
    is_good &= get_group<kBits>(in, std::min<size_t>(kRiceGroup, n - i), codes + i);
  }
  return is_good && in.is_at_end();
}

template <class Body>
auto with_bits(int bits, const Body& body) {
  if (bits == 3) return body(std::integral_constant<int, 3>());
  return body(std::integral_constant<int, 4>());
}

size_t pack_any(uint8_t* codes, size_t n, int bits, std::byte* to) {
  return with_bits(bits, [&](auto of) HWY_ATTR { return pack<of()>(codes, n, to); });
}

bool unpack_any(std::span<const std::byte> from, size_t n, int bits, uint8_t* codes) {
  return with_bits(bits, [&](auto of) HWY_ATTR { return unpack<of()>(from, n, codes); });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(pack_any);
HWY_EXPORT(unpack_any);

size_t pack_rice(uint8_t* codes, size_t n, int bits, std::byte* to) {
  return HWY_DYNAMIC_DISPATCH(pack_any)(codes, n, bits, to);
}

bool unpack_rice(std::span<const std::byte> from, size_t n, int bits, uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(unpack_any)(from, n, bits, codes);
}

}  // namespace gradtune::compress
#endif
