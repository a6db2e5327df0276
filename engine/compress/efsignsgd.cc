// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// EF-SignSGD (Karimireddy et al., ICML 2019), blockwise: of each block of elements the signs and the mean of |p|.
//
// Payload: header (count = blocks), the fp32 scales, one bit for each element (1 = negative; -0 counts as negative, as
// it does in the error, so that encoder and decoders agree). A block is small enough to be read twice from the cache,
// so encode with error feedback moves 12 bytes per element through memory (reads gradient and residual, writes the next
// residual) and 1/8 + 4/block for the payload. Decode writes 4 and reads the payloads. Accuracy: Fashion-MNIST, 468
// steps, blocks of 64: 1.8 points below fp32. Hence not in the default list.
#include "engine/compress/blocks.h"
#include "engine/compress/efsignsgd_kernels.h"
#include "engine/compress/rows.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {
namespace {

constexpr uint32_t kId = compressor_id("efsg");

int64_t block_of(const core::CompressorSpec& spec) { return static_cast<int64_t>(spec.parameter); }

BlockLayout layout_of(int64_t block, int64_t n) { return block_layout(block, n, /*scales_per_block=*/1, (n + 7) / 8); }

class EfSignSgd final : public Compressor {
 public:
  EfSignSgd(core::CompressorSpec spec, const core::CompressorTraits& traits)
      : spec_(std::move(spec)), traits_(traits), block_(block_of(spec_)) {}

  const core::CompressorTraits& traits() const override { return traits_; }
  const core::CompressorSpec& spec() const override { return spec_; }
  int64_t scratch_bytes(int64_t /*n*/) const override { return 0; }

  bool encode(const Encode& job, Queue& queue) const override {
    check_encode(*this, job);
    const auto n = static_cast<int64_t>(job.gradient.size());
    const BlockLayout layout = layout_of(block_, n);
    std::byte* payload = job.payload.data();
    write_frame(job.payload, layout, kId, n);
    std::atomic<bool> finite = true;
    for_ranges(queue, n, run_elements(block_), [&](int64_t begin, int64_t end) {
      const SignEncode run{.gradient = job.gradient.data() + begin,
                           .residual = offset(job.residual, begin),
                           .residual_next = offset(job.residual_next, begin),
                           .add_to_residual_next = job.add_to_residual_next,
                           .scale = job.scale,
                           .error_scale = job.error_scale,
                           .unsent_factor = unsent_factor(job),
                           .scales = reinterpret_cast<float*>(payload + layout.scales_at) + begin / block_,
                           .bits = payload + layout.codes_at + begin / 8,
                           .block = static_cast<size_t>(block_),
                           .n = static_cast<size_t>(end - begin),
                           .stream = n * 4 >= kStreamBytes};
      if (!encode_signs(run)) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load(std::memory_order_relaxed);
  }

  core::Status decode(std::span<const std::span<const std::byte>> payloads, std::span<float> out, bool accumulate,
                      Queue& queue) const override {
    const auto n = static_cast<int64_t>(out.size());
    const BlockLayout layout = layout_of(block_, n);
    if (core::Status status = check_blocks(payloads, layout, kId, n, queue); !status) return status;
    for_ranges(queue, n, run_elements(block_), [&](int64_t begin, int64_t end) {
      decode_signs({.payloads = payloads,
                    .scales_at = static_cast<size_t>(layout.scales_at + begin / block_ * 4),
                    .bits_at = static_cast<size_t>(layout.codes_at + begin / 8),
                    .out = out.data() + begin,
                    .block = static_cast<size_t>(block_),
                    .n = static_cast<size_t>(end - begin),
                    .accumulate = accumulate,
                    .stream = n * 4 >= kStreamBytes});
    });
    return {};
  }

 private:
  core::CompressorSpec spec_;
  core::CompressorTraits traits_;
  int64_t block_;
};

}  // namespace

TableRow efsignsgd() {
  return {.traits = {.name = "efsignsgd",
                     .summary = "signs, and the mean magnitude of each block of elements",
                     .fidelity = core::Fidelity::lossy,
                     .in_default_list = false,
                     .summable = false,
                     .error_feedback = true,
                     .parameter_name = "block",
                     .parameter_default = 64,
                     .parameter_min = 8,
                     .parameter_max = 65536,
                     .parameter_step = 8,
                     .payload_bytes = [](const core::CompressorSpec& spec,
                                         int64_t n) { return layout_of(block_of(spec), n).bytes; }},
          .make = [](const core::CompressorSpec& spec, const core::CompressorTraits& traits)
              -> std::unique_ptr<Compressor> { return std::make_unique<EfSignSgd>(spec, traits); }};
}

}  // namespace gradtune::compress
