// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rand-k (Stich, Cordonnier, Jaggi: Sparsified SGD with Memory; NeurIPS 2018) sends k = ceil(density * n) random
// elements. They are the same on all ranks, so only values are sent, and a collective can add them up. It has error
// feedback and no scaling: it keeps k / n of the squared norm of p on average, and nothing in elements that are not
// sent.
//
// The elements are cut into k strata whose sizes differ by at most one, and one element is drawn from each. The start
// of the strata is drawn too. So elements are distinct, and each is sent with probability k / n. They ascend except
// for one jump, which makes memory accesses faster than those of a draw from all elements.
//
// Payload: k fp32 values. Encode and decode process one block with its strata after the other, in one pass over
// memory. Bytes moved per element: encode with error feedback 12 (reads gradient and residual, writes the next
// residual), decode 4.
//
// Accuracy: tests/bench/results/README.md.
#include <cmath>

#include "engine/compress/randk/strata.h"
#include "engine/compress/shared.h"
#include "engine/compress/simd/add_by_pieces.h"
#include "engine/compress/simd/shared_random_kernels.h"
#include "engine/compress/simd/write_floats.h"
#include "engine/compress/topk/topk_kernels.h"

namespace gradtune::compress {
namespace {

// The sent elements among n > 0.
class Strata {
 public:
  Strata(const Work& work, int64_t n, int64_t k, int64_t at_once)
      : work_(work),
        n_(n),
        limits_(strata_of(work, n, k)),
        size_(limits_.size),
        larger_(limits_.larger),
        at_once_(at_once) {
    core::check(at_once % kWords == 0 && at_once <= kMostAtOnce,
                "strata are drawn in fours, and there is room for them");
    begin_ = limits_.begin;
  }

  static constexpr int64_t kWords = kSharedWords;  // strata for which the random bits of one element suffice
  static constexpr int64_t kMostAtOnce = 256;

  // Elements that consecutive strata send, counted from the requested `begin`. `stratum` is the first of these
  // strata.
  struct Run {
    int64_t stratum;
    std::span<const int64_t> elements;
  };

  // Calls visit(run) for the sent elements in [begin, end), a range of at most a block.
  template <class Visit>
  void for_sent(int64_t begin, int64_t end, const Visit& visit) const {
    const int64_t middle = std::clamp(begin_, begin, end);  // behind the last element, strata continue at the first one
    if (begin < middle) for_sent_from(begin_ - n_, begin, begin, middle, visit);
    if (middle < end) for_sent_from(begin_, begin, middle, end, visit);
  }

 private:
  int64_t begin_of(int64_t stratum) const { return limits_.begin_of(stratum); }
  int64_t stratum_of(int64_t position) const { return limits_.stratum_of(position); }

  // As for_sent, if strata begin at the element `origin`; elements are counted from `zero`.
  template <class Visit>
  void for_sent_from(int64_t origin, int64_t zero, int64_t begin, int64_t end, const Visit& visit) const {
    const int64_t behind = stratum_of(end - 1 - origin) + 1;
    int64_t stratum = stratum_of(begin - origin) / kWords * kWords;
    while (stratum < behind) {
      const int64_t next = std::min(behind, stratum + at_once_);
      int64_t elements[kMostAtOnce];
      draw(stratum, next, origin - zero, elements);
      // Strata at both ends may be partly outside of the range, and so may their elements.
      int64_t first = 0, last = next - stratum;
      while (first < last && elements[first] < begin - zero) ++first;
      while (first < last && elements[last - 1] >= end - zero) --last;
      if (first < last) visit(Run{stratum + first, {elements + first, elements + last}});
      stratum = next;
    }
  }

  // The elements that strata send if they begin at the element `origin`; a few more strata may be drawn. Each kWords
  // strata use the random bits of their second element, since those of the very first one gave the start of the
  // strata.
  void draw(int64_t stratum, int64_t next, int64_t origin, int64_t* elements) const {
    const int64_t all_larger = larger_ / kWords * kWords;
    while (stratum < next) {
      const int64_t element = work_.first_element + begin_of(stratum) + 1;
      if (stratum == all_larger && larger_ > all_larger) {  // of both sizes
        for (const uint32_t word : shared_random(work_.random, element)) {
          const auto size = static_cast<uint64_t>(size_ + (stratum < larger_ ? 1 : 0));
          *elements++ = origin + begin_of(stratum++) + static_cast<int64_t>(word * size >> 32);
        }
        continue;
      }
      const bool is_larger = stratum < all_larger;
      const int64_t behind = is_larger ? std::min(next, all_larger) : next,
                    groups = (behind - stratum + kWords - 1) / kWords;
      draw_from_strata(work_.random,
                       {.begin = origin + begin_of(stratum),
                        .size = is_larger ? size_ + 1 : size_,
                        .element = element,
                        .words_of = static_cast<size_t>(groups)},
                       elements);
      stratum += groups * kWords;
      elements += groups * kWords;
    }
  }

  const Work& work_;
  int64_t n_;
  StrataLimits limits_;
  int64_t size_, larger_;
  int64_t at_once_;  // strata that are drawn at once
  int64_t begin_ = 0;
};

// Elements that are encoded at once: errors are written while what follows is read, so that fewer are better than where
// all that memory has to do is to read.
constexpr int64_t kReadAtOnce = 4096, kErrorsAtOnce = 2048;

// Strata whose values are added at once: few, since so much is asked for of all payloads, and then written.
constexpr int64_t kDecodedAtOnce = 64;
constexpr size_t kFloatsOfLine = 64 / sizeof(float);

class RandK final : public HostCompressor {
 public:
  RandK(core::CompressorSpec spec, const core::CompressorTraits& traits) : HostCompressor(std::move(spec), traits) {}

  int64_t scratch_bytes(const core::Extent& /*extent*/) const override { return 0; }

  // Processes a block at a time, while it is in the cache.
  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.gradient.size());
    if (n == 0) return true;
    const Strata strata(job.work, n, share_of(spec().parameter, n), Strata::kMostAtOnce);
    auto* const values = reinterpret_cast<float*>(job.payload.data());
    const float factor = unsent_factor(job);
    Largest largest;
    const auto encode_piece = [&](int64_t begin, int64_t end) {
      alignas(64) float tile[kErrorsAtOnce];
      const auto count = static_cast<size_t>(end - begin);
      float* const next = offset(job.residual_next, begin);
      if (next != nullptr && job.add_to_residual_next) std::copy_n(next, count, tile);
      largest.add(keep_unsent({.gradient = job.gradient.data() + begin,
                               .residual = offset(job.residual, begin),
                               .factor = factor,
                               .errors = next == nullptr ? nullptr : tile,
                               .add = job.add_to_residual_next,
                               .n = count,
                               .stream = false}));
      // Sent elements have no error: the next residual stays as it was, or is zero.
      strata.for_sent(begin, end, [&](const Strata::Run& run) {
        const float* const gradient = job.gradient.data() + begin;
        const float* const residual = offset(job.residual, begin);
        float* value = values + run.stratum;
        for (int64_t i : run.elements) {
          *value++ = job.scale * (residual == nullptr ? gradient[i] : gradient[i] + residual[i]);
        }
        if (next == nullptr) return;
        for (int64_t i : run.elements) tile[i] = job.add_to_residual_next ? next[i] : 0;
      });
      if (next == nullptr) return;
      write_floats(tile, next, count, /*past_caches=*/n * 4 >= kStreamBytes);
    };
    const int64_t step = job.residual_next == nullptr ? kReadAtOnce : kErrorsAtOnce;
    for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
      for (; begin < end; begin += step) encode_piece(begin, std::min(end, begin + step));
    });
    return finite_product(job.scale, largest.get()) && finite_product(factor, largest.get());
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    if (Rejected bad = check_sizes(job.payloads, payload_bytes(n))) return bad;
    if (n == 0) return {};
    const Strata strata(job.work, n, share_of(spec().parameter, n), kDecodedAtOnce);
    add_by_pieces(job, queue, [&](int64_t begin, int64_t end, float* sums, const auto& write) {
      strata.for_sent(begin, end, [&](const Strata::Run& run) {
        add_run(job, run, sums);
        write(run.elements.back());
      });
    });
    return {};
  }

 private:
  // To sums that are not zero values are added one by one, in the order of payloads. Otherwise they are added up where
  // they lie side by side, and written, as each element is drawn once.
  static void add_run(const Decode& job, const Strata::Run& run, float* sums) {
    const auto values_of = [&](size_t p) {
      return reinterpret_cast<const float*>(job.payloads[p].data()) + run.stratum;
    };
    const int64_t* const elements = run.elements.data();
    const size_t count = run.elements.size(), payloads = job.payloads.size();
    if (job.accumulate) {
      for (size_t p = 0; p < payloads; ++p) {
        const float* const values = values_of(p);
        for (size_t i = 0; i < count; ++i) sums[elements[i]] += values[i];
      }
      return;
    }
    float sent[kDecodedAtOnce];
    const float* values = values_of(0);
    for (size_t p = 1; p < payloads; ++p) {
      const float* const more = values_of(p);
      for (size_t i = 0; i < count; i += kFloatsOfLine) hwy::Prefetch(more + count + i);
      for (size_t i = 0; i < count; ++i) sent[i] = values[i] + more[i];
      values = sent;
    }
    for (size_t i = 0; i < count; ++i) sums[elements[i]] = 0.0F + values[i];  // as to a zero: -0 becomes 0
  }
};

constexpr double kDensities[] = {0.3, 0.1, 0.05};

}  // namespace

StrataLimits strata_of(const Work& work, int64_t n, int64_t k) {
  const auto words = shared_random(work.random, work.first_element);
  const uint64_t draw = uint64_t{words[1]} << 32 | words[2];
  return {n, n / k, n % k, static_cast<int64_t>(draw % static_cast<uint64_t>(n))};
}

CompressorRow randk() {
  return {.traits = {.name = "randk",
                     .summary = "this share of all elements, drawn at random",
                     .fidelity = core::Fidelity::lossy,
                     .listed = core::Listed::never,
                     .summable = true,
                     .error_feedback = true,
                     .parameter_name = "density",
                     .parameter_default = 0.1,
                     .parameter_min = 1e-6,
                     .parameter_max = 1,
                     .parameter_search = kDensities,
                     .payload_bytes = [](const core::CompressorSpec& spec, const core::Extent& extent,
                                         int) { return 4 * share_of(spec.parameter, extent.numel); },
                     .host = {.limit = core::HostWork::Limit::random}},
          .make = make_as<RandK>};
}

}  // namespace gradtune::compress
