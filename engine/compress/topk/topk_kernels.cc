// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/topk/topk_kernels.h"

#include <bit>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/topk/topk_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/momentum-inl.h"
#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// Calls body(d, i, indices, values) for vectors of candidates that cover [0, n).
template <class Body>
HWY_INLINE void for_candidates(const Candidate* candidates, size_t n, const Body& body) {
  const auto load = [&](auto d, size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    hn::VFromD<decltype(du)> indices, values;
    hn::LoadInterleaved2(du, reinterpret_cast<const uint32_t*>(candidates + i), indices, values);
    body(d, i, indices, hn::BitCast(d, values));
  };
  for_vectors(n, load);
}

HWY_INLINE uint32_t largest_of_candidates(const Candidate* candidates, size_t n) {
  const hn::ScalableTag<int32_t> di;
  auto largest = hn::Zero(di);
  int32_t last = 0;
  for_candidates(candidates, n, [&](auto d, size_t /*i*/, auto /*indices*/, auto values) HWY_ATTR {
    if constexpr (hn::MaxLanes(d) == hn::MaxLanes(di)) {
      largest = hn::Max(largest, abs_bits(d, values));
    } else {
      last = std::max(last, hn::GetLane(abs_bits(d, values)));
    }
  });
  return static_cast<uint32_t>(std::max(last, hn::GetLane(hn::MaxOfLanes(di, largest))));
}

void write_all(const SendAll& job, uint16_t* positions, uint16_t* values) {
  for_candidates(job.candidates, job.n, [&](auto d, size_t i, auto indices, auto numbers) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<uint16_t, decltype(d)> d16;
    const auto store = [&](auto numbers16, uint16_t* to)
                           HWY_ATTR { hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, numbers16)), d16, to + i); };
    store(hn::Sub(indices, hn::Set(du, job.first)), positions);
    store(bf16_bits(d, hn::Mul(numbers, hn::Set(d, job.scale))), values);
  });
}

template <bool has_residual, bool has_momentum>
Scanned scan(const TopkScan& block, Candidate* candidates) {
  Output<float> kept(block.kept, block.stream);
  Output<float> momenta(block.momentum.next, block.stream);
  HWY_ALIGN float only_scanned[kTile];
  const Errors errors = block.errors;
  const auto below = static_cast<int32_t>(block.bound - 1);
  size_t found = 0;
  for (size_t begin = 0; begin < block.n; begin += kTile) {
    const size_t count = std::min(kTile, block.n - begin), found_before = found;
    const float* gradient = block.gradient + begin;
    const float* residual = offset(block.residual, begin);
    float* const tile = kept.tile(begin);
    float* const momentum = momenta.tile(begin);
    if constexpr (has_momentum) {
      float* const to = momentum == nullptr ? only_scanned : momentum;
      update_momentum(block.momentum.before + begin, block.momentum.decay, gradient, nullptr, count, to);
      gradient = to;
    }
    const auto is_candidate = [&](auto d, size_t i) HWY_ATTR -> uint64_t {
      const hn::RebindToSigned<decltype(d)> di;
      if constexpr (!has_momentum) prefetch_behind(d, gradient, residual, i);
      if constexpr (has_momentum && has_residual) prefetch_behind(d, residual, i);
      auto p = hn::LoadU(d, gradient + i);
      if constexpr (has_residual) p = hn::Add(p, hn::LoadU(d, residual + i));
      if (tile != nullptr) hn::StoreU(hn::Mul(p, hn::Set(d, errors.unsent_factor)), d, tile + i);
      return bits_of(di, hn::Gt(abs_bits(d, p), hn::Set(di, below)));
    };
    const auto keep = [&](size_t first, uint64_t bits) HWY_ATTR {
      const auto without_lowest = [&](uint64_t left) HWY_ATTR {
        const size_t i = first + static_cast<size_t>(std::countr_zero(left)) % 64;
        const float p = has_residual ? gradient[i] + residual[i] : gradient[i];
        candidates[found] = {block.index + static_cast<uint32_t>(begin + i), p};
        found += left != 0;
        return left & (left - 1);
      };
      // Most words have at most two set bits. These are handled without a branch, since no processor could predict
      // it.
      bits = without_lowest(without_lowest(bits));
      while (bits != 0) bits = without_lowest(bits);
    };
    for_words(count, is_candidate, keep);
    for (size_t i = found_before; tile != nullptr && i < found; ++i) {
      tile[candidates[i].index - block.index - begin] = errors.of_sent(candidates[i].value);
    }
    for (size_t i = found_before; has_momentum && momentum != nullptr && i < found; ++i) {
      momentum[candidates[i].index - block.index - begin] = 0;
    }
    kept.finish_tile(count);
    momenta.finish_tile(count);
  }
  return {found, largest_of_candidates(candidates, found)};
}

Scanned scan_block(const TopkScan& block, Candidate* candidates) {
  if (block.momentum.before != nullptr) {
    return block.residual == nullptr ? scan<false, true>(block, candidates) : scan<true, true>(block, candidates);
  }
  return block.residual == nullptr ? scan<false, false>(block, candidates) : scan<true, false>(block, candidates);
}

uint32_t keep_block(const Unsent& block) {
  Output<float> errors(block.errors, block.stream && !block.add);
  uint32_t largest = 0;
  for (size_t begin = 0; begin < block.n; begin += kTile) {
    const size_t count = std::min(kTile, block.n - begin);
    const float* gradient = block.gradient + begin;
    const float* residual = offset(block.residual, begin);
    float* error = errors.tile(begin);
    const uint32_t seen = largest_of(count, [&](auto d, size_t i) HWY_ATTR {
      prefetch_behind(d, gradient, residual, i);
      const auto p = load_p(d, gradient, residual, i);
      if (error != nullptr) {
        auto kept = hn::Mul(p, hn::Set(d, block.factor));
        if (block.add) kept = hn::Add(hn::LoadU(d, error + i), kept);
        hn::StoreU(kept, d, error + i);
      }
      return abs_bits(d, p);
    });
    largest = std::max(largest, seen);
    errors.finish_tile(count);
  }
  return largest;
}

bool do_ascend(const TopkBlock& block, uint32_t length) {
  if (block.n == 0) return true;
  const hn::ScalableTag<uint16_t> d;
  const uint16_t* const positions = block.positions;
  const size_t last = block.n - 1, lanes = hn::Lanes(d);
  auto good = hn::FirstN(d, lanes);
  const auto look_at = [&](size_t i) HWY_ATTR {
    good = hn::And(good, hn::Lt(hn::LoadU(d, positions + i), hn::LoadU(d, positions + i + 1)));
  };
  size_t i = 0;
  for (; i + lanes <= last; i += lanes) look_at(i);
  bool rest = positions[last] < length;
  if (last >= lanes) {
    look_at(last - lanes);
  } else {
    for (; i < last; ++i) rest &= positions[i] < positions[i + 1];
  }
  return rest && hn::AllTrue(d, good);
}

// The number of positions below the limit.
HWY_INLINE size_t count_below(const uint16_t* positions, size_t n, uint32_t limit) {
  const hn::ScalableTag<uint16_t> d;
  const auto below = hn::Set(d, static_cast<uint16_t>(limit));
  const size_t lanes = hn::Lanes(d);
  size_t count = 0, i = 0;
  for (; i + lanes <= n; i += lanes) count += hn::CountTrue(d, hn::Lt(hn::LoadU(d, positions + i), below));
  if (n >= lanes) {  // the last vector, without the lanes already counted
    const auto counted = hn::FirstN(d, i + lanes - n);
    return count + hn::CountTrue(d, hn::AndNot(counted, hn::Lt(hn::LoadU(d, positions + n - lanes), below)));
  }
  for (; i < n; ++i) count += positions[i] < limit ? 1 : 0;
  return count;
}

void add_some(const TopkBlock& block, uint32_t begin, uint32_t end, float* sums) {
  const hn::CappedTag<float, 4> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const uint16_t* const positions = block.positions;
  const uint16_t* const values = block.values;
  const size_t n = block.n;
  HWY_ALIGN float wide[8];
  size_t i = begin == 0 ? 0 : count_below(positions, n, begin);
  // Values are widened together, with one branch for eight: most of the work of an element is its addition.
  for (; i + 8 <= n && positions[i + 7] < end; i += 8) {
    // The data of the next block follow. With so many payloads, the hardware prefetcher does not recognise the
    // streams.
    hwy::Prefetch(positions + i + n);
    hwy::Prefetch(values + i + n);
    for (size_t j = 0; j < 8; j += hn::Lanes(d)) {
      hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, values + i + j)))), d, wide + j);
    }
    for (size_t j = 0; j < 8; ++j) sums[positions[i + j]] += wide[j];
  }
  for (; i < n && positions[i] < end; ++i) sums[positions[i]] += core::widen_bf16(values[i]);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(scan_block);
HWY_EXPORT(keep_block);
HWY_EXPORT(write_all);
HWY_EXPORT(do_ascend);
HWY_EXPORT(add_some);

Scanned scan_topk(const TopkScan& block, Candidate* candidates) {
  return HWY_DYNAMIC_DISPATCH(scan_block)(block, candidates);
}

void send_all(const SendAll& job, uint16_t* positions, uint16_t* values) {
  HWY_DYNAMIC_DISPATCH(write_all)(job, positions, values);
}

uint32_t keep_unsent(const Unsent& block) { return HWY_DYNAMIC_DISPATCH(keep_block)(block); }

bool is_ascending(const TopkBlock& block, uint32_t length) { return HWY_DYNAMIC_DISPATCH(do_ascend)(block, length); }

void add_topk(const TopkBlock& block, uint32_t begin, uint32_t end, float* sums) {
  HWY_DYNAMIC_DISPATCH(add_some)(block, begin, end, sums);
}

}  // namespace gradtune::compress
#endif
