// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rand-k (Stich, Cordonnier, Jaggi: Sparsified SGD with Memory; NeurIPS 2018): k = ceil(density * n) elements at
// random, the same ones on all ranks, so that values alone travel and a collective can add them up. With error
// feedback, and unscaled: of p it keeps k / n of the squared norm on average, and nothing where it sends nothing.
//
// The elements are cut into k strata of equal size, but for one element, and one is drawn from each; strata begin at an
// element that is drawn too. So elements are distinct, each is sent with probability k / n, and they ascend but for one
// jump, which memory likes better than a draw from all.
//
// Payload: k fp32 values. Both directions go block by block, each with its strata, in one pass over memory. Bytes moved
// per element: encode with error feedback 12 (reads gradient and residual, writes the next residual), decode 4.
//
// Accuracy (`./run bench accuracy`, 2026-11-24, 3 seeds, alone from the first step on) at 10 %. Fashion-MNIST, one epoch,
// 2 ranks, fp32 85.5 %: 83.8, in three times as many steps to fp32's loss at three quarters of the way; 4 ranks, half as
// many steps, fp32 84.4 %: 77.9. A transformer under AdamW, 400 steps, perplexity of a byte, 2 ranks, fp32 6.52: 14.2; 4
// ranks, fp32 5.80: 14.2. At 1 % an earlier prototype's residual grew to a hundred times the gradient, and training
// diverged. It is not in the default list.
#include <cmath>

#include "engine/compress/add_by_blocks.h"
#include "engine/compress/rows.h"
#include "engine/compress/shared.h"
#include "engine/compress/shared_random_kernels.h"
#include "engine/compress/topk_kernels.h"
#include "engine/compress/write_floats.h"

namespace gradtune::compress {
namespace {

// The elements that are sent, of n > 0.
class Strata {
 public:
  Strata(const Work& work, int64_t n, int64_t k) : work_(work), n_(n), size_(n / k), larger_(n % k) {
    const auto words = shared_random(work.random, work.first_element);
    const uint64_t draw = uint64_t{words[1]} << 32 | words[2];
    begin_ = static_cast<int64_t>(draw % static_cast<uint64_t>(n));
  }

  static constexpr int64_t kWords = kSharedWords;  // strata that one element's random bits are for
  static constexpr int64_t kAtOnce = 64 * kWords;  // strata that are drawn at once

  // Elements that are sent by consecutive strata, the first of which is named, counted from the `begin` that was asked
  // for.
  struct Run {
    int64_t stratum;
    std::span<const int64_t> elements;
  };

  // Calls visit(run) for the elements that are sent of [begin, end), which are no more than a block.
  template <class Visit>
  void for_sent(int64_t begin, int64_t end, const Visit& visit) const {
    const int64_t middle = std::clamp(begin_, begin, end);  // the strata go on at the front when they come to the end
    if (begin < middle) for_sent_from(begin_ - n_, begin, begin, middle, visit);
    if (middle < end) for_sent_from(begin_, begin, middle, end, visit);
  }

 private:
  int64_t begin_of(int64_t stratum) const { return stratum * size_ + std::min(stratum, larger_); }
  int64_t stratum_of(int64_t position) const {
    const int64_t of_larger = larger_ * (size_ + 1);
    return position < of_larger ? position / (size_ + 1) : larger_ + (position - of_larger) / size_;
  }

  // Where strata begin at the element `origin`; elements are counted from `zero`.
  template <class Visit>
  void for_sent_from(int64_t origin, int64_t zero, int64_t begin, int64_t end, const Visit& visit) const {
    const int64_t behind = stratum_of(end - 1 - origin) + 1;
    int64_t stratum = stratum_of(begin - origin) / kWords * kWords;
    while (stratum < behind) {
      const int64_t next = std::min(behind, stratum + kAtOnce);
      uint32_t words[kAtOnce];
      draw(stratum, next, words);
      int64_t elements[kAtOnce];
      const int64_t larger = std::clamp(larger_, stratum, next) - stratum;
      const int64_t from = origin + begin_of(stratum) - zero;
      place(words, larger, from, size_ + 1, elements);
      place(words + larger, next - stratum - larger, from + larger * (size_ + 1), size_, elements + larger);
      // Strata at both ends may be partly outside, and what they send.
      int64_t first = 0, last = next - stratum;
      while (first < last && elements[first] < begin - zero) ++first;
      while (first < last && elements[last - 1] >= end - zero) --last;
      if (first < last) visit(Run{stratum + first, {elements + first, elements + last}});
      stratum = next;
    }
  }

  // Random bits are those of the second element of each kWords strata, since the first one of all has said where they
  // begin.
  void draw(int64_t stratum, int64_t next, uint32_t* words) const {
    while (stratum < next) {
      // As far as one step leads: up to the first that begins behind the larger ones, or to the end.
      const bool is_larger = stratum < larger_;
      const int64_t last = is_larger ? std::min(next, larger_ + 1) : next,
                    blocks = (last - stratum + kWords - 1) / kWords;
      shared_random_of(work_.random,
                       {.first = work_.first_element + begin_of(stratum) + 1,
                        .step = kWords * (is_larger ? size_ + 1 : size_),
                        .n = static_cast<size_t>(blocks)},
                       words);
      stratum += blocks * kWords;
      words += blocks * kSharedWords;
    }
  }

  // Of `count` strata of that size, of which the first begins at `from`.
  static void place(const uint32_t* words, int64_t count, int64_t from, int64_t size, int64_t* elements) {
    const auto width = static_cast<uint32_t>(size);
    for (int64_t i = 0; i < count; ++i) {
      elements[i] = from + i * size + static_cast<int64_t>(uint64_t{words[i]} * width >> 32);
    }
  }

  const Work& work_;
  int64_t n_, size_, larger_;  // the first so many strata have one element more
  int64_t begin_ = 0;
};

class RandK final : public Compressor {
 public:
  RandK(core::CompressorSpec spec, const core::CompressorTraits& traits) : spec_(std::move(spec)), traits_(traits) {}

  const core::CompressorTraits& traits() const override { return traits_; }
  const core::CompressorSpec& spec() const override { return spec_; }
  int64_t scratch_bytes(const core::Extent& /*extent*/) const override { return 0; }

  // A block at a time, while it is in the cache.
  bool encode(const Encode& job, Queue& queue) const override {
    check_encode(*this, job);
    const auto n = static_cast<int64_t>(job.gradient.size());
    if (n == 0) return true;
    const Strata strata(job.work, n, share_of(spec_.parameter, n));
    auto* const values = reinterpret_cast<float*>(job.payload.data());
    const float factor = unsent_factor(job);
    Largest largest;
    for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
      alignas(64) float tile[kBlockElements];
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
      // What is sent has no error: the next residual stays what it was, or is zero.
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
    });
    return finite_product(job.scale, largest.get()) && finite_product(factor, largest.get());
  }

  core::Status decode(const Decode& job, Queue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    if (core::Status sizes = check_sizes(job.payloads, payload_bytes(n)); !sizes || n == 0) return sizes;
    const Strata strata(job.work, n, share_of(spec_.parameter, n));
    add_by_blocks(job, queue, [&](int64_t begin, int64_t end, float* sums, const auto& done) {
      int64_t piece = begin;
      strata.for_sent(begin, end, [&](const Strata::Run& run) {
        float sent[Strata::kAtOnce];
        const size_t count = run.elements.size();
        for (size_t i = 0; i < count; ++i) sent[i] = sums[run.elements[i]];
        for (const std::span<const std::byte>& payload : job.payloads) {
          const float* const values = reinterpret_cast<const float*>(payload.data()) + run.stratum;
          for (size_t i = 0; i < count; ++i) sent[i] += values[i];
        }
        for (size_t i = 0; i < count; ++i) sums[run.elements[i]] = sent[i];
        const int64_t next = begin + run.elements.back() / kPieceElements * kPieceElements;
        if (next > piece) done(piece, next);
        piece = std::max(piece, next);
      });
      done(piece, end);
    });
    return {};
  }

 private:
  core::CompressorSpec spec_;
  core::CompressorTraits traits_;
};

constexpr double kDensities[] = {0.3, 0.1, 0.05};

}  // namespace

TableRow randk() {
  return {.traits = {.name = "randk",
                     .summary = "this share of all elements, drawn at random",
                     .fidelity = core::Fidelity::lossy,
                     .in_default_list = false,
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
