// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The compressors that send one number per element: `none` (fp32), `bf16` and `fp16`. They differ in the type on the
// wire and in nothing else. Payloads are bare arrays, so that a collective can add them up.
//
// Bytes moved per element: encode reads 4 and writes the code (2 or 4), with error feedback 4 more are read and 4
// written; decode reads the codes of all payloads and writes 4.
#include <bit>
#include <cmath>

#include "engine/compress/shared.h"
#include "engine/compress/simd/dense_kernels.h"

namespace gradtune::compress {
namespace {

// The smallest |x| that does not round to a finite number of the type, and the largest relative error of rounding.
struct Limits {
  double overflow, roundoff;
};
constexpr Limits limits_of(core::DType wire) {
  switch (wire) {
    case core::DType::f32: return {0x1.ffffffp127, 0x1p-24};  // halfway between the largest and infinity, as in all
    case core::DType::bf16: return {0x1.ffp127, 0x1p-8};
    case core::DType::f16: return {65520, 0x1p-11};
    case core::DType::f64: break;  // no payload is of double precision
  }
  return {};
}

class Dense final : public HostCompressor {
 public:
  Dense(core::CompressorSpec spec, const core::CompressorTraits& traits, core::DType wire)
      : HostCompressor(std::move(spec), traits), wire_(wire) {}

  Summing summing(int /*round*/) const override { return {.type = core::wire_type_of(wire_)}; }
  int64_t scratch_bytes(const core::Extent& /*extent*/) const override { return 0; }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const int64_t width = core::bytes_per_element(wire_);
    const auto n = static_cast<int64_t>(job.gradient.size());
    Largest largest;
    for_ranges(queue, n, task_elements(n), [&](int64_t begin, int64_t end) {
      largest.add(encode_dense(wire_, run_of(job, begin, end), job.payload.data() + begin * width,
                               /*stream=*/n * width >= kStreamBytes));
    });
    return largest.get() <= largest_that_sums(wire_, job.summed);
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    if (Rejected bad = check_sizes(job.payloads, payload_bytes(n))) return bad;
    for_ranges(queue, n, task_elements(n), [&](int64_t begin, int64_t end) {
      decode_dense(wire_, {.payloads = job.payloads,
                           .first = static_cast<size_t>(begin),
                           .out = job.out.data() + begin,
                           .n = static_cast<size_t>(end - begin),
                           .accumulate = job.accumulate,
                           .stream = n * 4 >= kStreamBytes});
    });
    return {};
  }

 private:
  core::DType wire_;
};

template <core::DType wire>
std::unique_ptr<Compressor> make(const core::CompressorSpec& spec, const core::CompressorTraits& traits) {
  return std::make_unique<Dense>(spec, traits, wire);
}

template <core::DType wire>
int64_t payload_bytes(const core::CompressorSpec& /*spec*/, const core::Extent& extent, int /*round*/) {
  return extent.numel * core::bytes_per_element(wire);
}

template <core::DType wire>
CompressorRow row(std::string_view name, std::string_view summary, core::Fidelity fidelity, core::Listed listed) {
  return {.traits = {.name = name,
                     .summary = summary,
                     .fidelity = fidelity,
                     .listed = listed,
                     .summable = true,
                     .error_feedback = false,
                     .parameter_name = "",
                     .payload_bytes = payload_bytes<wire>,
                     .carries_nonfinite = true},
          .make = make<wire>};
}

}  // namespace

uint32_t largest_that_sums(core::DType wire, int summed) {
  const Limits limits = limits_of(wire);
  const double growth = summed == 1 ? 1 : summed * std::pow(1 + limits.roundoff, summed);
  const auto is_small = [&](uint32_t bits) {
    return bits < kInfinityBits && double{std::bit_cast<float>(bits)} * growth < limits.overflow;
  };
  auto bits = std::min(std::bit_cast<uint32_t>(static_cast<float>(limits.overflow / growth)), kInfinityBits);
  while (!is_small(bits)) --bits;
  while (is_small(bits + 1)) ++bits;
  return bits;
}

CompressorRow none() {
  return row<core::DType::f32>("none", "fp32 as it is", core::Fidelity::exact, core::Listed::always);
}

// The default 16-bit form: as wide a range as fp32, so that nothing overflows.
CompressorRow bf16() {
  return row<core::DType::bf16>("bf16", "rounded to bfloat16, 8 bits of precision", core::Fidelity::half,
                                core::Listed::always);
}

// Eight times as precise, but gradients above 65504 may overflow (which is seen, and skips the step): to be asked for.
CompressorRow fp16() {
  CompressorRow made = row<core::DType::f16>("fp16", "rounded to float16, 11 bits of precision", core::Fidelity::half,
                                             core::Listed::never);
  made.traits.narrow = true;
  return made;
}

}  // namespace gradtune::compress
