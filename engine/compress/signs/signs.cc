// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The compressors that send the sign of each element, in blocks that have one or two scales.
//
//   `efsignsgd`  is EF-SignSGD (Karimireddy et al., ICML 2019), blockwise: the scale is the mean of |p|. It has error
//                feedback. It keeps exactly ||p||_1^2 / size of the squared norm of a block.
//   `onebit`     is 1-bit SGD (Seide et al., Interspeech 2014), blockwise: the scales are the means of either side. It
//                has error feedback. It is an orthogonal projection, so its error and the sent values are orthogonal.
//   `signsgd`    is SignSGD (Bernstein et al., ICML 2018): every element is a vote of 1 or -1, so its size has to come
//                from the learning rate. The average of payloads is the mean of the votes. A program of two steps
//                encodes their sum again, and the result is the majority. Votes add up exactly, and a tie counts as
//                positive. Without error feedback it does not converge in general (Karimireddy et al.).
//   `signum`     is SigNUM (Bernstein et al., section 3.1): SignSGD of the momentum
//                m = momentum * m + (1 - momentum) * p, which is its state and begins with zero. A sum that is encoded
//                again has no momentum: its signs are those of the votes.
//
// Payload: header (count = blocks), the fp32 scales, one bit for each element. A block is small enough to be read twice
// from the cache. So encode with error feedback moves 12 bytes per element through memory (reads gradient and residual,
// writes the next residual). The payload adds 1/8 + 4/block (onebit: 8/block). Decode writes 4 and reads the payloads.
//
// Accuracy: tests/bench/results/README.md.
#include "engine/compress/signs/signs.h"

#include <utility>

#include "engine/compress/blocks.h"
#include "engine/compress/shared.h"
#include "engine/compress/signs/signs_kernels.h"

namespace gradtune::compress {
namespace {

using Member = SignCode;
constexpr Member kEfSignSgd{compressor_id("efsg"), SignScales::mean, 0};
constexpr Member kOneBit{compressor_id("1bit"), SignScales::means, 0};
constexpr Member kSignSgd{compressor_id("sign"), SignScales::vote, kBlockElements};
constexpr Member kSigNum{compressor_id("snum"), SignScales::vote, kBlockElements, true};

constexpr std::pair<std::string_view, const Member*> kMembers[] = {
    {"efsignsgd", &kEfSignSgd}, {"onebit", &kOneBit}, {"signsgd", &kSignSgd}, {"signum", &kSigNum}};

BlockLayout layout_of(const Member& member, const core::CompressorSpec& spec, int64_t n) {
  const int64_t block = member.block == 0 ? static_cast<int64_t>(spec.parameter) : member.block;
  return block_layout(block, n, scales_per_block(member.scales), (n + 7) / 8);
}

class Signs final : public HostCompressor {
 public:
  Signs(core::CompressorSpec spec, const core::CompressorTraits& traits, const Member& member)
      : HostCompressor(std::move(spec), traits), member_(member) {}

  int64_t scratch_bytes(const core::Extent& /*extent*/) const override { return 0; }
  int64_t state_bytes(const core::Extent& extent) const override { return member_.has_momentum ? 4 * extent.numel : 0; }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.gradient.size());
    const BlockLayout layout = layout_of(member_, spec(), n);
    std::byte* payload = job.payload.data();
    write_frame(job.payload, layout, member_.id, n);
    std::atomic<bool> finite = true;
    const bool streamed = n * 4 >= kStreamBytes;
    Momentum momentum;
    if (member_.has_momentum && job.work.state != nullptr) {
      momentum = {.before = reinterpret_cast<const float*>(job.work.state),
                  .next = reinterpret_cast<float*>(job.work.state_next),
                  .decay = static_cast<float>(spec().parameter)};
    }
    for_ranges(queue, n, run_elements(layout.block, task_elements(n)), [&](int64_t begin, int64_t end) {
      const SignTarget to{.kind = member_.scales,
                          .scales = reinterpret_cast<float*>(payload + scales_at(layout, begin)),
                          .bits = payload + layout.codes_at + begin / 8,
                          .block = static_cast<size_t>(layout.block),
                          .momentum = momentum.from(begin),
                          .stream = streamed};
      if (!encode_signs(run_of(job, begin, end), to)) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load(std::memory_order_relaxed);
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    const BlockLayout layout = layout_of(member_, spec(), n);
    if (Rejected bad = check_frames(job.payloads, layout.bytes, member_.id, n, layout.blocks)) return bad;
    std::atomic<bool> good = true;
    for_ranges(queue, n, run_elements(layout.block, task_elements(n)), [&](int64_t begin, int64_t end) {
      decode_signs({.kind = member_.scales,
                    .payloads = job.payloads,
                    .scales_at = static_cast<size_t>(scales_at(layout, begin)),
                    .bits_at = static_cast<size_t>(layout.codes_at + begin / 8),
                    .out = job.out.data() + begin,
                    .block = static_cast<size_t>(layout.block),
                    .n = static_cast<size_t>(end - begin),
                    .accumulate = job.accumulate,
                    .stream = n * 4 >= kStreamBytes});
      // Behind it: they are in the cache by now.
      if (!scales_are_good(job.payloads, layout, begin, end)) good.store(false, std::memory_order_relaxed);
    });
    if (good.load(std::memory_order_relaxed)) return {};
    return bad_scale(job.payloads, layout);
  }

 private:
  static int64_t scales_at(const BlockLayout& layout, int64_t element) {
    return layout.scales_at + layout.scales_before(element) * 4;
  }

  Member member_;
};

constexpr double kBlocks[] = {64, 256, 1024};
constexpr double kMomenta[] = {0.9};

template <const Member& member>
CompressorRow row(std::string_view name, std::string_view summary, bool error_feedback, double usual_block) {
  const bool has_parameter = member.block == 0;
  return {.traits = {.name = name,
                     .summary = summary,
                     .fidelity = core::Fidelity::lossy,
                     .listed = core::Listed::never,
                     .summable = false,
                     .error_feedback = error_feedback,
                     .parameter_name = has_parameter ? "block" : "",
                     .parameter_default = usual_block,
                     .parameter_min = has_parameter ? 8 : 0.0,
                     .parameter_max = has_parameter ? 65536 : 0.0,
                     .parameter_step = has_parameter ? 8 : 0.0,
                     .parameter_search = has_parameter ? std::span<const double>(kBlocks) : std::span<const double>(),
                     .payload_bytes = [](const core::CompressorSpec& spec, const core::Extent& extent,
                                         int) { return layout_of(member, spec, extent.numel).bytes; },
                     .host = {.state_arrays = member.has_momentum ? 1 : 0}},
          .make = [](const core::CompressorSpec& spec, const core::CompressorTraits& traits)
              -> std::unique_ptr<Compressor> { return std::make_unique<Signs>(spec, traits, member); }};
}

}  // namespace

SignCode sign_code_of(const core::CompressorSpec& spec) {
  for (const auto& [name, member] : kMembers) {
    if (name == spec.name) return *member;
  }
  core::check(false, "it is one of the compressors that send signs");
  return kSignSgd;
}

BlockLayout sign_layout(const core::CompressorSpec& spec, int64_t n) { return layout_of(sign_code_of(spec), spec, n); }

CompressorRow efsignsgd() {
  return row<kEfSignSgd>("efsignsgd", "signs, and the mean magnitude of each block of elements", true, 64);
}

CompressorRow onebit() {
  return row<kOneBit>("onebit", "signs, and the means of both sides of each block of elements", true, 256);
}

CompressorRow signum() {
  CompressorRow made = row<kSigNum>("signum", "signs of the gradient's momentum, votes of 1 and -1", false, 0);
  made.traits.parameter_name = "momentum";
  made.traits.parameter_default = 0.9;
  made.traits.parameter_min = 0.5;
  made.traits.parameter_max = 0.999;
  made.traits.parameter_search = kMomenta;
  return made;
}

CompressorRow signsgd() { return row<kSignSgd>("signsgd", "signs alone, votes of 1 and -1", false, 0); }

}  // namespace gradtune::compress
