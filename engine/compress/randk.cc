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
// Payload: k fp32 values. Bytes moved per element: encode with error feedback 12 (reads gradient and residual, writes
// the next residual), decode 4, and besides a cache line for each element that is sent.
//
// Accuracy, of an earlier prototype: Fashion-MNIST, 468 steps: at 1 % the residual grows to a hundred times the
// gradient, and training diverges. Of this code it was not measured yet.
#include <cmath>

#include "engine/compress/rows.h"
#include "engine/compress/shared.h"
#include "engine/compress/topk_kernels.h"

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

  int64_t operator[](int64_t stratum) const {
    const int64_t begin = stratum * size_ + std::min(stratum, larger_);
    const auto size = static_cast<uint64_t>(size_ + (stratum < larger_ ? 1 : 0));
    const uint64_t draw = shared_random(work_.random, work_.first_element + begin)[0];
    const int64_t element = begin_ + begin + static_cast<int64_t>(draw * size >> 32);
    return element < n_ ? element : element - n_;
  }

 private:
  const Work& work_;
  int64_t n_, size_, larger_;  // the first so many strata have one element more
  int64_t begin_ = 0;
};

class RandK final : public Compressor {
 public:
  RandK(core::CompressorSpec spec, const core::CompressorTraits& traits) : spec_(std::move(spec)), traits_(traits) {}

  const core::CompressorTraits& traits() const override { return traits_; }
  const core::CompressorSpec& spec() const override { return spec_; }
  int64_t scratch_bytes(const core::Extent& extent) const override {
    return 4 * share_of(spec_.parameter, extent.numel);
  }

  bool encode(const Encode& job, Queue& queue) const override {
    check_encode(*this, job);
    const auto n = static_cast<int64_t>(job.gradient.size());
    if (n == 0) return true;
    const int64_t k = share_of(spec_.parameter, n);
    const Strata strata(job.work, n, k);
    // What the next residual has where an element is sent, and will have again: its error is zero.
    auto* const before = reinterpret_cast<float*>(job.scratch.data());
    if (job.residual_next != nullptr && job.add_to_residual_next) {
      for_ranges(queue, k, kSentAtOnce, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) before[i] = job.residual_next[strata[i]];
      });
    }
    Largest largest;
    for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
      largest.add(keep_unsent({.gradient = job.gradient.data() + begin,
                               .residual = offset(job.residual, begin),
                               .factor = unsent_factor(job),
                               .errors = offset(job.residual_next, begin),
                               .add = job.add_to_residual_next,
                               .n = static_cast<size_t>(end - begin),
                               .stream = n * 4 >= kStreamBytes}));
    });
    auto* const values = reinterpret_cast<float*>(job.payload.data());
    for_ranges(queue, k, kSentAtOnce, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t element = strata[i];
        const float gradient = job.gradient[static_cast<size_t>(element)];
        values[i] = job.scale * (job.residual == nullptr ? gradient : gradient + job.residual[element]);
        if (job.residual_next != nullptr) job.residual_next[element] = job.add_to_residual_next ? before[i] : 0;
      }
    });
    return finite_product(job.scale, largest.get()) && finite_product(unsent_factor(job), largest.get());
  }

  core::Status decode(const Decode& job, Queue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    if (core::Status sizes = check_sizes(job.payloads, payload_bytes(n)); !sizes || n == 0) return sizes;
    if (!job.accumulate) {
      for_ranges(queue, n, kBlockElements,
                 [&](int64_t begin, int64_t end) { std::fill_n(job.out.data() + begin, end - begin, 0.0F); });
    }
    const int64_t k = share_of(spec_.parameter, n);
    const Strata strata(job.work, n, k);
    for_ranges(queue, k, kSentAtOnce, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float& sum = job.out[static_cast<size_t>(strata[i])];
        for (const std::span<const std::byte>& payload : job.payloads) {
          sum += reinterpret_cast<const float*>(payload.data())[i];
        }
      }
    });
    return {};
  }

 private:
  static constexpr int64_t kSentAtOnce = 1024;

  core::CompressorSpec spec_;
  core::CompressorTraits traits_;
};

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
                     .payload_bytes = [](const core::CompressorSpec& spec, const core::Extent& extent,
                                         int) { return 4 * share_of(spec.parameter, extent.numel); },
                     .host = {.limit = core::HostWork::Limit::random}},
          .make = make_as<RandK>};
}

}  // namespace gradtune::compress
