// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// THC (Li et al.: THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression; NSDI 2024),
// uniform. It sends small integers that a collective adds up as they are; the sum is decoded once, whatever the
// number of ranks. Each block of 1024 elements is rotated at random, on all ranks alike, which spreads it evenly over
// its coordinates. The coordinates are clamped to [-t, t]. They are rounded, at random and without bias, to one of
// levels + 1 values in between. The limit t is a multiple of the largest norm of the block among all ranks. The ranks
// agree on this norm in the first round, by a maximum. Error feedback keeps the error of clamping and rounding.
//
// The sum of codes has to fit a byte: levels * ranks <= 255. More levels make steps finer and t larger: the error of
// clamping falls as fast as the error of rounding.
//
// Payloads: round 0 has the fp32 norm of each block. Round 1 has a byte for each element, and the last block is
// filled up to 1024. Bytes moved per element: 8 for the norms (reads gradient and residual), 13 for codes and next
// residual; decode 5. Encode rotates numbers once, with 10 additions an element. Decode rotates codes once, and so
// does encode for the errors. Codes are small integers, so one instruction computes several of their first sums.
//
// Accuracy: tests/bench/results/README.md.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "engine/compress/shared.h"
#include "engine/compress/simd/shared_random_kernels.h"
#include "engine/compress/thc/thc_kernels.h"

namespace gradtune::compress {
namespace {

constexpr int kLargestSum = 255;

int64_t block_count(int64_t n) { return (n + kRotated - 1) / kRotated; }

int64_t bytes_of(int64_t n, int round) { return round == 0 ? 4 * block_count(n) : kRotated * block_count(n); }

// The signs of the elements from that position on.
RotationSigns signs_of(const Random& random, int64_t element) {
  RotationSigns signs;
  shared_random_of(random, {element, kSharedWords, signs.size() / kSharedWords}, signs.data());
  return signs;
}

class Thc final : public HostCompressor {
 public:
  Thc(core::CompressorSpec spec, const core::CompressorTraits& traits)
      : HostCompressor(std::move(spec), traits), levels_(static_cast<int>(this->spec().parameter)) {}

  Summing summing(int round) const override {
    if (round == 0) return {.type = core::WireType::f32, .reduction = core::Reduction::max};
    return {.type = core::WireType::u8};
  }
  int64_t scratch_bytes(const core::Extent& /*extent*/) const override { return 0; }
  int64_t round_bytes(const core::Extent& extent) const override { return bytes_of(extent.numel, 0); }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.gradient.size());
    return job.work.round == 0 ? encode_norms(job, n, queue) : encode_codes(job, n, queue);
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    if (Rejected bad = check_sizes(job.payloads, bytes_of(n, job.work.round))) return bad;
    return job.work.round == 0 ? decode_norms(job, n, queue) : decode_codes(job, n, queue);
  }

 private:
  static bool encode_norms(const Encode& job, int64_t n, HostQueue& queue) {
    auto* const norms = reinterpret_cast<float*>(job.payload.data());
    std::atomic<bool> finite = true;
    for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
      for (; begin < end; begin += kRotated) {
        const auto count = static_cast<size_t>(std::min(end - begin, kRotated));
        const double norm = norm_of(job.gradient.data() + begin, offset(job.residual, begin), count);
        const auto scaled = static_cast<float>(norm * job.scale), kept = static_cast<float>(norm * unsent_factor(job));
        const bool is_finite = std::isfinite(scaled) && std::isfinite(kept);
        norms[begin / kRotated] = is_finite ? scaled : 0;
        if (!is_finite) finite.store(false, std::memory_order_relaxed);
      }
    });
    return finite.load(std::memory_order_relaxed);
  }

  static Rejected decode_norms(const Decode& job, int64_t n, HostQueue& queue) {
    const int64_t blocks = block_count(n);
    auto* const largest = reinterpret_cast<float*>(job.work.round_memory);
    std::fill_n(largest, blocks, 0.0F);
    for (size_t p = 0; p < job.payloads.size(); ++p) {
      const auto* const norms = reinterpret_cast<const float*>(job.payloads[p].data());
      const int64_t bad =
          find_first(queue, blocks, [&](int64_t i) { return !(norms[i] >= 0 && std::isfinite(norms[i])); });
      if (bad < blocks) {
        return Rejection{p, "norm " + std::to_string(bad) + " is " + std::to_string(norms[bad]) +
                                "; norms are finite and not negative"};
      }
      for (int64_t i = 0; i < blocks; ++i) largest[i] = std::max(largest[i], norms[i]);
    }
    return {};
  }

  bool encode_codes(const Encode& job, int64_t n, HostQueue& queue) const {
    for_ranges(queue, n, task_elements(n), [&](int64_t begin, int64_t end) {
      Blocks blocks;
      encode_thc(run_of(job, begin, end), {.blocks = blocks_of(job.work, begin, end, blocks),
                                           .random = job.work.random,
                                           .first_element = job.work.first_element + begin,
                                           .codes = reinterpret_cast<uint8_t*>(job.payload.data()) + begin,
                                           .stream = n * 4 >= kStreamBytes});
    });
    return true;  // the first round has seen all elements
  }

  Rejected decode_codes(const Decode& job, int64_t n, HostQueue& queue) const {
    std::atomic<bool> good = true;
    for_ranges(queue, n, task_elements(n), [&](int64_t begin, int64_t end) {
      Blocks blocks;
      const bool decoded = decode_thc({.payloads = job.payloads,
                                       .codes_at = static_cast<size_t>(begin),
                                       .summed = job.summed,
                                       .blocks = blocks_of(job.work, begin, end, blocks),
                                       .out = job.out.data() + begin,
                                       .n = static_cast<size_t>(end - begin),
                                       .accumulate = job.accumulate,
                                       .stream = n * 4 >= kStreamBytes});
      if (!decoded) good.store(false, std::memory_order_relaxed);
    });
    if (good.load(std::memory_order_relaxed)) return {};
    return bad_sum(job);
  }

  using Blocks = std::array<ThcBlock, kMostTaskElements / kRotated>;

  std::span<const ThcBlock> blocks_of(const Work& work, int64_t begin, int64_t end, Blocks& blocks) const {
    size_t count = 0;
    for (; begin < end; begin += kRotated) {
      blocks[count++] = {signs_of(work.random, work.first_element + begin), levels_of(work, begin)};
    }
    return std::span(blocks).first(count);
  }

  // Finds the first sum that is larger than any valid one.
  Rejection bad_sum(const Decode& job) const {
    const int most = levels_ * job.summed;
    for (size_t p = 0; p < job.payloads.size(); ++p) {
      const std::span<const std::byte> sums = job.payloads[p];
      const auto bad =
          std::find_if(sums.begin(), sums.end(), [&](std::byte sum) { return std::to_integer<int>(sum) > most; });
      if (bad == sums.end()) continue;
      return Rejection{p, "sum " + std::to_string(bad - sums.begin()) + " is " +
                              std::to_string(std::to_integer<int>(*bad)) + "; sums are at most " +
                              std::to_string(most)};
    }
    core::check(false, "one of the sums is too large");
    return {};
  }

  // A coordinate of the rotated block is about normally distributed with a standard deviation of norm / 32, and t is
  // a multiple of that. The arithmetic is exact, since all ranks must get the same result.
  ThcLevels levels_of(const Work& work, int64_t element) const {
    const float norm = reinterpret_cast<const float*>(work.round_memory)[element / kRotated];
    const float clamp = norm * ((2 + static_cast<float>(levels_) / 64) / 32);
    const float unit = 2 * clamp / static_cast<float>(levels_);
    // Below, 1 / unit overflows: such a block counts as zero.
    if (!(unit >= std::numeric_limits<float>::min())) return {.levels = levels_};
    return {.low = -clamp, .unit = unit, .levels = levels_};
  }

  int levels_;
};

constexpr double kLevels[] = {60, 30, 15};  // for at most 4, 8 and 17 ranks

}  // namespace

CompressorRow thc() {
  return {
      .traits = {
          .name = "thc",
          .summary = "integers of rotated blocks, in as many levels, whose sum fits a byte",
          .fidelity = core::Fidelity::lossy,
          .listed = core::Listed::never,
          .summable = true,
          .error_feedback = true,
          .parameter_name = "levels",
          .parameter_default = 30,
          .parameter_min = 2,
          .parameter_max = 127,
          .parameter_step = 1,
          .parameter_search = kLevels,
          .rounds = 2,
          .payload_bytes = [](const core::CompressorSpec&, const core::Extent& extent,
                              int round) { return bytes_of(extent.numel, round); },
          .most_ranks = [](const core::CompressorSpec& spec) { return kLargestSum / static_cast<int>(spec.parameter); },
          .host = {.limit = core::HostWork::Limit::random, .reads = 2, .feedback_reads = 4, .rounds_at_random = true}},
      .make = make_as<Thc>};
}

}  // namespace gradtune::compress
