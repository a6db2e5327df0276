// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rand-k (Stich, Cordonnier, Jaggi: Sparsified SGD with Memory; NeurIPS 2018): k = ceil(density * n) elements at random,
// the same ones on all ranks, so that values alone travel and a collective can add them up. With error feedback, and
// unscaled: of p it keeps k / n of the squared norm on average, and nothing where it sends nothing.
//
// The elements are cut into k strata of equal size, but for one element, and one is drawn from each; strata begin at an
// element that is drawn too. So elements are distinct, each is sent with probability k / n, and they ascend but for one
// jump, which memory likes better than a draw from all.
//
// Payload: k fp32 values. Both directions go block by block, each with its strata, in one pass over memory. Bytes moved
// per element: encode with error feedback 12 (reads gradient and residual, writes the next residual), decode 4.
//
// Accuracy, of an earlier prototype: Fashion-MNIST, 468 steps: at 1 % the residual grows to a hundred times the
// gradient, and training diverges. Of this code it was not measured yet.
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

  // Calls visit(stratum, element) for the elements that are sent of [begin, end).
  template <class Visit>
  void for_sent(int64_t begin, int64_t end, const Visit& visit) const {
    const int64_t middle = std::clamp(begin_, begin, end);  // the strata go on at the front when they come to the end
    if (begin < middle) for_sent_from(begin_ - n_, begin, middle, visit);
    if (middle < end) for_sent_from(begin_, middle, end, visit);
  }

 private:
  static constexpr int64_t kWords = 4;    // strata of a block of random bits
  static constexpr int64_t kBlocks = 64;  // that are drawn at once

  int64_t begin_of(int64_t stratum) const { return stratum * size_ + std::min(stratum, larger_); }
  int64_t stratum_of(int64_t position) const {
    const int64_t of_larger = larger_ * (size_ + 1);
    return position < of_larger ? position / (size_ + 1) : larger_ + (position - of_larger) / size_;
  }

  // Where strata begin at that element. Random bits are those of the second element of each kWords strata, since the
  // first one of all has said where they begin.
  template <class Visit>
  void for_sent_from(int64_t origin, int64_t begin, int64_t end, const Visit& visit) const {
    const int64_t behind = stratum_of(end - 1 - origin) + 1;
    int64_t stratum = stratum_of(begin - origin) / kWords * kWords;
    int64_t from = origin + begin_of(stratum);
    while (stratum < behind) {
      const int64_t next = std::min(behind, stratum + kBlocks * kWords);
      const int64_t blocks = (next - stratum + kWords - 1) / kWords;
      int64_t positions[kBlocks];
      std::array<uint32_t, kWords> words[kBlocks];
      for (int64_t i = 0; i < blocks; ++i) {
        positions[i] = work_.first_element + begin_of(stratum + i * kWords) + 1;
      }
      shared_random_of(work_.random, positions, static_cast<size_t>(blocks), words);
      for (int64_t i = 0; stratum < next; ++stratum, ++i) {
        const int64_t size = size_ + (stratum < larger_ ? 1 : 0);
        const int64_t element =
            from + static_cast<int64_t>(uint64_t{words[i / kWords][i % kWords]} * static_cast<uint64_t>(size) >> 32);
        if (begin <= element && element < end) visit(stratum, element);
        from += size;
      }
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
      strata.for_sent(begin, end, [&](int64_t stratum, int64_t element) {
        const float gradient = job.gradient[static_cast<size_t>(element)];
        values[stratum] = job.scale * (job.residual == nullptr ? gradient : gradient + job.residual[element]);
        tile[element - begin] = next != nullptr && job.add_to_residual_next ? next[element - begin] : 0;
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
    add_by_blocks(job, queue, [&](int64_t begin, int64_t end, float* sums) {
      strata.for_sent(begin, end, [&](int64_t stratum, int64_t element) {
        float sum = sums[element - begin];
        for (const std::span<const std::byte>& payload : job.payloads) {
          sum += reinterpret_cast<const float*>(payload.data())[stratum];
        }
        sums[element - begin] = sum;
      });
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
