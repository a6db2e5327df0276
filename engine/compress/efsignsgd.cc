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
#include <bit>

#include "engine/compress/efsignsgd_kernels.h"
#include "engine/compress/rows.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {
namespace {

constexpr uint32_t kId = compressor_id("efsg");

int64_t block_of(const core::CompressorSpec& spec) { return static_cast<int64_t>(spec.parameter); }

struct Layout {
  int64_t blocks, scales_at, bits_at, bytes;

  Layout(int64_t block, int64_t n)
      : blocks((n + block - 1) / block),
        scales_at(sizeof(PayloadHeader)),
        bits_at(scales_at + section_bytes(blocks * 4)),
        bytes(bits_at + section_bytes((n + 7) / 8)) {}
};

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
    const Layout layout(block_, n);
    std::byte* payload = job.payload.data();
    write_header(job.payload, kId, n, layout.blocks);
    clear_padding(payload, layout.scales_at + layout.blocks * 4, layout.bits_at);
    clear_padding(payload, layout.bits_at + (n + 7) / 8, layout.bytes);
    std::atomic<bool> finite = true;
    for_ranges(queue, n, run_elements(), [&](int64_t begin, int64_t end) {
      const SignEncode run{.gradient = job.gradient.data() + begin,
                           .residual = offset(job.residual, begin),
                           .residual_next = offset(job.residual_next, begin),
                           .add_to_residual_next = job.add_to_residual_next,
                           .scale = job.scale,
                           .error_scale = job.error_scale,
                           .unsent_factor = unsent_factor(job),
                           .scales = reinterpret_cast<float*>(payload + layout.scales_at) + begin / block_,
                           .bits = payload + layout.bits_at + begin / 8,
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
    const Layout layout(block_, n);
    core::Status status = check_frames(payloads, layout.bytes, kId, n, layout.blocks);
    if (status.ok()) status = check_scales(payloads, layout, queue);
    if (!status.ok()) return status;
    for_ranges(queue, n, run_elements(), [&](int64_t begin, int64_t end) {
      decode_signs({.payloads = payloads,
                    .scales_at = static_cast<size_t>(layout.scales_at + begin / block_ * 4),
                    .bits_at = static_cast<size_t>(layout.bits_at + begin / 8),
                    .out = out.data() + begin,
                    .block = static_cast<size_t>(block_),
                    .n = static_cast<size_t>(end - begin),
                    .accumulate = accumulate,
                    .stream = n * 4 >= kStreamBytes});
    });
    return {};
  }

 private:
  // Whole blocks, about as many elements as other compressors give to one task.
  int64_t run_elements() const { return std::max(block_, kBlockElements / block_ * block_); }

  static void clear_padding(std::byte* payload, int64_t begin, int64_t end) {
    std::fill(payload + begin, payload + end, std::byte{0});
  }

  // Finite and not negative, or rejected.
  static core::Status check_scales(std::span<const std::span<const std::byte>> payloads, const Layout& layout,
                                   Queue& queue) {
    for (size_t i = 0; i < payloads.size(); ++i) {
      const auto* bits = reinterpret_cast<const uint32_t*>(payloads[i].data() + layout.scales_at);
      const int64_t bad = find_first(queue, layout.blocks, [bits](int64_t b) { return bits[b] >= kInfinityBits; });
      if (bad == layout.blocks) continue;
      const auto value = std::to_string(std::bit_cast<float>(bits[bad]));
      return bad_payload(i, payloads.size(), "scale " + std::to_string(bad) + " is " + value);
    }
    return {};
  }

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
                                         int64_t n) { return Layout(block_of(spec), n).bytes; }},
          .make = [](const core::CompressorSpec& spec, const core::CompressorTraits& traits)
              -> std::unique_ptr<Compressor> { return std::make_unique<EfSignSgd>(spec, traits); }};
}

}  // namespace gradtune::compress
