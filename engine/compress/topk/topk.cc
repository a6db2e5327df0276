// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The compressors that send the largest elements, k = ceil(density * n) of them.
//
//   `topk`     sends exactly the k elements of the largest |p|. Ties go to the lower index.
//   `threshk`  does the same by a threshold that is carried from step to step as the state of a bucket. Aji and
//              Heafield (EMNLP 2017) take such a threshold from a sample; here nothing needs to be sampled. The result
//              is exact if k elements or more reach the threshold. If fewer do, but at least half as many, those are
//              sent.
//   `dgc`      is Deep Gradient Compression (Lin et al., ICLR 2018, section 3): threshk of momentum. u is the mean of
//              the gradients so far, each weighing 0.9 of the next; v = u + residual. The largest of v are sent, and u
//              and the residual become zero there (momentum correction and factor masking). The paper's u is ten times
//              as large once it has settled. The mean keeps steps as large as they are without momentum, from the
//              first one on; so they match those of other strategies that take turns with dgc. The paper's momentum
//              replaces that of the optimizer, which must have none of its own.
//              The paper's warm-up (section 3.3) sends 25 % in the first epoch and a quarter of that before in each of
//              the next four. It is no setting of dgc: a density is the size of a payload and so part of a strategy,
//              whose hash all ranks hold in every step. Different densities are different strategies used in turn
//              ("dgc:0.25", then "dgc:0.0625"), which carry residuals along but not momentum. Instead, gradtune does
//              not compress at all before the step `lossy_after`, when gradients change most.
//
// Payload: header (count = sent elements). For each block of 8192 elements, the number of elements that are sent
// before it (uint32). The positions in their blocks, ascending (uint16). The values (bfloat16), whose rounding error
// is fed back like all other errors. That is 4 bytes per sent element. Encode with error feedback reads gradient and
// residual and writes the next residual: 12 bytes per element (dgc: 20, with the momentum), and one cache line for
// each candidate that is not sent. Decode writes 4 bytes per element and reads the payloads.
//
// Accuracy: tests/bench/results/README.md.
#include <fmt/format.h>
#include <hwy/cache_control.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "engine/compress/shared.h"
#include "engine/compress/simd/add_by_pieces.h"
#include "engine/compress/topk/topk_layout.h"
#include "engine/compress/topk/topk_select.h"
#include "engine/core/float16.h"

namespace gradtune::compress {
namespace {

using Member = TopkMember;
using Layout = TopkLayout;
constexpr Member kTopK{compressor_id("topk"), false, false};
constexpr Member kThreshK{compressor_id("thrk"), true, false};
constexpr Member kDgc{compressor_id("dgc "), true, true};

constexpr float kMomentum = kTopkMomentum;
constexpr int64_t kMomentumAt = kTopkMomentumAt;
constexpr uint32_t kMostSteps = kTopkMostSteps;

// The weight of the momentum so far after that many steps, in a mean in which each gradient weighs kMomentum of the
// next. It converges to kMomentum. It is a table since each entry is computed from the one before.
constexpr std::array<float, kMostSteps + 1> kDecayAfter = [] {
  std::array<float, kMostSteps + 1> decay{};
  double weight = 0;  // of all gradients so far, where the last one weighs 1
  for (float& after : decay) {
    after = static_cast<float>(double{kMomentum} * weight / (1 + double{kMomentum} * weight));
    weight = 1 + double{kMomentum} * weight;
  }
  return decay;
}();

constexpr std::pair<std::string_view, const Member*> kMembers[] = {
    {"topk", &kTopK}, {"threshk", &kThreshK}, {"dgc", &kDgc}};

class TopK final : public HostCompressor {
 public:
  TopK(core::CompressorSpec spec, const core::CompressorTraits& traits, const Member& member)
      : HostCompressor(std::move(spec), traits), member_(member) {}

  int64_t scratch_bytes(const core::Extent& extent) const override {
    return TopkSelection::scratch_bytes(extent.numel, Layout(spec(), extent.numel).k);
  }
  int64_t state_bytes(const core::Extent& extent) const override {
    return member_.carries_bound ? kMomentumAt + (member_.has_momentum ? 4 * extent.numel : 0) : 0;
  }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.gradient.size());
    const Layout layout(spec(), n);
    std::byte* const payload = job.payload.data();
    const TopkSelection::Sent sent{reinterpret_cast<uint32_t*>(payload + layout.starts_at),
                                   reinterpret_cast<uint16_t*>(payload + layout.positions_at),
                                   reinterpret_cast<uint16_t*>(payload + layout.values_at)};
    const TopkSelection::Carried carried = carried_of(job.work);
    TopkSelection selection(job, layout.k, carried, queue);
    const bool finite = n == 0 || selection.run(sent);
    if (!finite) write_not_finite(sent, layout);
    const int64_t count = finite ? selection.count() : layout.k;
    write_header(job.payload, member_.id, n, count);
    // Unused places and padding are zero; sections are filled up to 16 bytes.
    std::fill(sent.starts + layout.blocks, reinterpret_cast<uint32_t*>(sent.positions), 0U);
    std::fill(sent.positions + count, sent.values, uint16_t{0});
    std::fill(sent.values + count, reinterpret_cast<uint16_t*>(payload + layout.bytes), uint16_t{0});
    if (job.work.state_next != nullptr && member_.carries_bound) {
      const std::array<uint32_t, kMomentumAt / 4> next{n == 0 ? 0 : selection.next_bound(),
                                                       std::min(steps_of(job.work) + 1, kMostSteps)};
      std::memcpy(job.work.state_next, next.data(), sizeof next);
    }
    return finite;
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    const Layout layout(spec(), n);
    const int64_t fewest = member_.carries_bound ? 0 : layout.k;
    if (Rejected bad = check_frames(job.payloads, layout.bytes, member_.id, n, {fewest, layout.k})) return bad;
    Largest rejected;  // number of payloads from the first bad one on
    const size_t payloads = job.payloads.size();
    add_by_pieces(job, queue, [&](int64_t begin, int64_t end, float* sums, const auto& write) {
      const int64_t index = begin / kBlockElements, first = index * kBlockElements;
      const auto length = static_cast<uint32_t>(std::min(kBlockElements, n - first));
      for (size_t p = 0; p < payloads; ++p) {
        const std::optional<TopkBlock> block = block_of(job.payloads[p], layout, index);
        // A block is checked before its first piece is decoded. Once one is bad, the content of the others does not
        // matter.
        if (begin == first && !(block && is_ascending(*block, length))) {
          rejected.add(static_cast<uint32_t>(payloads - p));
        } else if (begin == first || rejected.get() == 0) {
          add_topk(*block, static_cast<uint32_t>(begin - first), static_cast<uint32_t>(end - first),
                   sums - (begin - first));
        }
        write(static_cast<int64_t>((p + 1) * kPieceElements / payloads));
      }
    });
    if (rejected.get() == 0) return {};
    return what_is_wrong(job.payloads, job.payloads.size() - rejected.get(), layout, n);
  }

 private:
  static uint32_t steps_of(const Work& work) {
    uint32_t steps = 0;
    std::memcpy(&steps, work.state + sizeof(uint32_t), sizeof steps);
    return steps;
  }

  TopkSelection::Carried carried_of(const Work& work) const {
    if (!member_.carries_bound || work.state == nullptr) return {};
    TopkSelection::Carried carried;
    std::memcpy(&carried.bound, work.state, sizeof carried.bound);
    if (member_.has_momentum) {
      carried.momentum = {.before = reinterpret_cast<const float*>(work.state + kMomentumAt),
                          .next = reinterpret_cast<float*>(work.state_next + kMomentumAt),
                          .decay = kDecayAfter[std::min(steps_of(work), kMostSteps)]};
    }
    return carried;
  }

  // Values that are not finite have no order. The payload tells decoders so: its first k elements are NaN.
  static void write_not_finite(const TopkSelection::Sent& sent, const Layout& layout) {
    for (int64_t block = 0; block < layout.blocks; ++block) {
      sent.starts[block] = static_cast<uint32_t>(std::min(layout.k, block * kBlockElements));
    }
    for (int64_t i = 0; i < layout.k; ++i) {
      sent.positions[i] = static_cast<uint16_t>(i % kBlockElements);
    }
    std::fill_n(sent.values, layout.k, core::narrow_bf16(std::numeric_limits<float>::quiet_NaN()));
  }

  // The range of a block, [first, end), among the elements that a payload sends.
  static std::pair<uint32_t, uint32_t> range_of(std::span<const std::byte> payload, const Layout& layout,
                                                int64_t index) {
    const auto* const starts = reinterpret_cast<const uint32_t*>(payload.data() + layout.starts_at);
    hwy::Prefetch(starts + index + 64 / sizeof(uint32_t));
    return {starts[index], index + 1 < layout.blocks ? starts[index + 1] : header_of(payload).count};
  }

  // The part of a payload that belongs to a block. Empty if starts do not ascend from 0 to the count; checking all
  // blocks checks all starts.
  static std::optional<TopkBlock> block_of(std::span<const std::byte> payload, const Layout& layout, int64_t index) {
    const auto [first, end] = range_of(payload, layout, index);
    if (end < first || end > layout.k || (index == 0 && first > 0)) return {};
    return TopkBlock{.positions = reinterpret_cast<const uint16_t*>(payload.data() + layout.positions_at) + first,
                     .values = reinterpret_cast<const uint16_t*>(payload.data() + layout.values_at) + first,
                     .n = end - first};
  }

  // The defect of a payload that was rejected.
  static Rejection what_is_wrong(std::span<const std::span<const std::byte>> payloads, size_t p, const Layout& layout,
                                 int64_t n) {
    for (int64_t index = 0; index < layout.blocks; ++index) {
      const auto [first, end] = range_of(payloads[p], layout, index);
      const std::optional<TopkBlock> block = block_of(payloads[p], layout, index);
      if (!block) {
        return Rejection{p, fmt::format("start of block {} is {}, its end {}; starts ascend from 0 to the count", index,
                                        first, end)};
      }
      const auto length = static_cast<uint32_t>(std::min(kBlockElements, n - index * kBlockElements));
      uint32_t least = 0;
      for (uint32_t i = 0; i < block->n; least = block->positions[i++] + 1U) {
        const uint32_t position = block->positions[i];
        if (position >= least && position < length) continue;
        return Rejection{p, fmt::format("position {} in block {} is {}; they ascend and are below {}", first + i, index,
                                        position, length)};
      }
    }
    core::check(false, "a payload that was rejected has a defect");
    return {};
  }

  Member member_;
};

// A threshold that is not carried takes one pass to find and another one to apply.
constexpr core::HostWork host_work(const Member& member) {
  if (!member.carries_bound) return {.limit = core::HostWork::Limit::selection, .reads = 2, .feedback_reads = 3};
  return {.state_arrays = member.has_momentum ? 1 : 0};
}

constexpr double kDensities[] = {0.1, 0.05, 0.02, 0.01};

template <const Member& member>
CompressorRow row(std::string_view name, std::string_view summary) {
  return {.traits = {.name = name,
                     .summary = summary,
                     .fidelity = core::Fidelity::lossy,
                     .listed = core::Listed::never,
                     .summable = false,
                     .error_feedback = true,
                     .parameter_name = "density",
                     .parameter_default = 0.02,
                     .parameter_min = 1e-6,
                     .parameter_max = 1,
                     .parameter_search = kDensities,
                     .payload_bytes = [](const core::CompressorSpec& spec, const core::Extent& extent,
                                         int) { return Layout(spec, extent.numel).bytes; },
                     .replaces_momentum = member.has_momentum,
                     .host = host_work(member)},
          .make = [](const core::CompressorSpec& spec, const core::CompressorTraits& traits)
              -> std::unique_ptr<Compressor> { return std::make_unique<TopK>(spec, traits, member); }};
}

}  // namespace

TopkMember topk_member_of(const core::CompressorSpec& spec) {
  for (const auto& [name, member] : kMembers) {
    if (name == spec.name) return *member;
  }
  core::check(false, "it is one of the compressors that send the largest elements");
  return kTopK;
}

CompressorRow topk() { return row<kTopK>("topk", "the largest elements, this share of all"); }

CompressorRow threshk() {
  return row<kThreshK>("threshk", "the largest elements, about this share of all, by the last step's threshold");
}

CompressorRow dgc() {
  return row<kDgc>("dgc", "the largest elements, about this share of all, of the gradient's momentum");
}

}  // namespace gradtune::compress
