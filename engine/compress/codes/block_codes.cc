// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The compressors that send, of each block of elements, a scale and a code of 1 to 8 bits for each element: they differ
// in what a code says (block_codes_kernels.h) and in nothing else.
//
//   int8      255 integers, the nearest one. Error feedback. Misses at most block / (4 * 127^2) of the squared norm.
//   int4      15 integers, the nearest one, of small blocks with units of 16 bits. Misses at most
//             1.016 block / (4 * 7^2) of the squared norm. Error feedback.
//   qsgd      QSGD (Alistarh et al., NeurIPS 2017) with s = 2^(bits - 1) - 1 levels and buckets of 128; unbiased,
//             variance at most min(128 / s^2, sqrt(128) / s). With 1 bit, levels are plus and minus the norm and
//             variance is 127.
//   terngrad  TernGrad (Wen et al., NeurIPS 2017): -1, 0 or 1 times the block's largest; unbiased. The paper's
//             clipping answers to one scale for a whole layer and makes it biased. Small blocks need no clipping.
//   natural   natural compression (Horvath et al., 2019): a neighbouring power of two; unbiased, variance at most 1/8.
//             127 powers below the block's largest are there, so that nothing overflows.
//   fp8e4m3, fp8e5m2  8-bit floating-point numbers that end at 448 and 57344. Error feedback.
//
// Payload: header (count = blocks), the units of blocks, codes. Bytes moved per element: encode reads 4 and writes
// bits / 8 and its share of the unit, with error feedback 4 more are read and 4 written; decode writes 4 and reads the
// payloads. Random ones draw by Philox besides: 7 rounds of 6 instructions of 512 bits for 128 elements, alone a
// quarter of what memory takes (bench compress_host, rows "draws").
//
// Accuracy: tests/bench/results/README.md.
#include "engine/compress/codes/block_codes.h"

#include <utility>

#include "engine/compress/blocks.h"
#include "engine/compress/codes/block_codes_kernels.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {
namespace {

using Member = BlockCode;
using Codes = CodeFormat::Codes;
constexpr Member kInt8{compressor_id("int8"), {.codes = Codes::nearest}, 0};
constexpr Member kInt4{compressor_id("int4"), {.codes = Codes::nearest, .bits = 4, .unit = CodeFormat::Unit::bf16}, 0};
constexpr Member kFp8E4M3{compressor_id("e4m3"), {.codes = Codes::e4m3}, 0};
constexpr Member kFp8E5M2{compressor_id("e5m2"), {.codes = Codes::e5m2}, 0};
constexpr Member kNatural{compressor_id("natu"), {.codes = Codes::power}, 1024};
constexpr Member kTernGrad{compressor_id("tern"), {.codes = Codes::stochastic, .bits = 2}, 0};
constexpr Member kQsgd{
    compressor_id("qsgd"), {.codes = Codes::stochastic, .norm = CodeFormat::Norm::euclidean, .bits = 0}, 128};

Member with_parameter(Member member, const core::CompressorSpec& spec) {
  if (member.block == 0) member.block = static_cast<int64_t>(spec.parameter);
  if (member.format.bits == 0) member.format.bits = static_cast<int>(spec.parameter);
  return member;
}

BlockLayout layout_of(const Member& member, int64_t n) { return block_code_layout(member, n); }

constexpr std::pair<std::string_view, const Member*> kMembers[] = {
    {"int8", &kInt8},       {"int4", &kInt4},         {"fp8e4m3", &kFp8E4M3}, {"fp8e5m2", &kFp8E5M2},
    {"natural", &kNatural}, {"terngrad", &kTernGrad}, {"qsgd", &kQsgd}};

class BlockCodes final : public HostCompressor {
 public:
  BlockCodes(core::CompressorSpec spec, const core::CompressorTraits& traits, const Member& member)
      : HostCompressor(std::move(spec), traits), member_(with_parameter(member, this->spec())) {}

  int64_t scratch_bytes(const core::Extent& /*extent*/) const override { return 0; }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.gradient.size());
    const BlockLayout layout = layout_of(member_, n);
    write_frame(job.payload, layout, member_.id, n);
    std::byte* const payload = job.payload.data();
    std::atomic<bool> finite = true;
    for_ranges(queue, n, run_elements(layout.block, task_elements(n)), [&](int64_t begin, int64_t end) {
      const CodeTarget to{
          .random = job.work.random,
          .first_element = static_cast<uint64_t>(job.work.first_element + begin),
          .units = payload + layout.scales_at + begin / layout.block * layout.scale_bytes,
          .codes = reinterpret_cast<uint8_t*>(payload) + layout.codes_at + code_bytes(begin, member_.format.bits),
          .block = static_cast<size_t>(layout.block),
          .stream = n * 4 >= kStreamBytes};
      const bool is_finite = encode_codes(member_.format, run_of(job, begin, end), to);
      if (!is_finite) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load(std::memory_order_relaxed);
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    const BlockLayout layout = layout_of(member_, n);
    if (Rejected bad = check_frames(job.payloads, layout.bytes, member_.id, n, layout.blocks)) return bad;
    std::atomic<bool> good = true;
    Largest accepted;  // complement of the lowest position of a bad payload
    for_ranges(queue, n, run_elements(layout.block, task_elements(n)), [&](int64_t begin, int64_t end) {
      const CodeDecode run{
          .payloads = job.payloads,
          .units_at = static_cast<size_t>(layout.scales_at + begin / layout.block * layout.scale_bytes),
          .codes_at = static_cast<size_t>(layout.codes_at + code_bytes(begin, member_.format.bits)),
          .out = job.out.data() + begin,
          .block = static_cast<size_t>(layout.block),
          .n = static_cast<size_t>(end - begin),
          .accumulate = job.accumulate,
          .stream = n * 4 >= kStreamBytes};
      accepted.add(static_cast<uint32_t>(job.payloads.size() - decode_codes(member_.format, run)));
      // Behind it: they are in the cache by now.
      if (!scales_are_good(job.payloads, layout, begin, end)) good.store(false, std::memory_order_relaxed);
    });
    if (!good.load(std::memory_order_relaxed)) return bad_scale(job.payloads, layout);
    if (accepted.get() == 0) return {};
    return Rejection{job.payloads.size() - accepted.get(), "a code is larger than any that is sent"};
  }

 private:
  Member member_;
};

struct Parameter {
  std::string_view name;
  double usual, min, max, step;
  std::span<const double> search;
};
constexpr double kBlocks[] = {128, 256, 1024}, kSmallBlocks[] = {64, 128, 256};
constexpr double kBits[] = {8, 4, 2};
constexpr Parameter block_of(double usual) { return {"block", usual, kPlaneElements, 65536, kPlaneElements, kBlocks}; }

constexpr Parameter kSmallBlock{"block", 64, kPlaneElements, 65536, kPlaneElements, kSmallBlocks};

constexpr core::HostWork host_work(const Member& member) {
  const bool draws = member.format.codes == Codes::stochastic || member.format.codes == Codes::power;
  if (!draws) return {};
  return {.limit = core::HostWork::Limit::random, .rounds_at_random = true};
}

template <const Member& member>
CompressorRow row(std::string_view name, std::string_view summary, bool error_feedback, const Parameter& parameter,
                  core::Listed listed = core::Listed::never, core::SeenError seen_error = {}) {
  return {.traits = {.name = name,
                     .summary = summary,
                     .fidelity = core::Fidelity::lossy,
                     .listed = listed,
                     .seen_error = seen_error,
                     .summable = false,
                     .error_feedback = error_feedback,
                     .parameter_name = parameter.name,
                     .parameter_default = parameter.usual,
                     .parameter_min = parameter.min,
                     .parameter_max = parameter.max,
                     .parameter_step = parameter.step,
                     .parameter_search = parameter.search,
                     .payload_bytes = [](const core::CompressorSpec& spec, const core::Extent& extent,
                                         int) { return layout_of(with_parameter(member, spec), extent.numel).bytes; },
                     .host = host_work(member)},
          .make = [](const core::CompressorSpec& spec, const core::CompressorTraits& traits)
              -> std::unique_ptr<Compressor> { return std::make_unique<BlockCodes>(spec, traits, member); }};
}

}  // namespace

BlockCode block_code_of(const core::CompressorSpec& spec) {
  for (const auto& [name, member] : kMembers) {
    if (name == spec.name) return with_parameter(*member, spec);
  }
  core::check(false, "it is one of the compressors that send codes of blocks");
  return kInt8;
}

BlockLayout block_code_layout(const BlockCode& code, int64_t n) {
  return block_layout(code.block, n, /*scales_per_block=*/1, code_bytes(n, code.format.bits),
                      unit_bytes(code.format.unit));
}

CompressorRow int8() {
  return row<kInt8>("int8", "8-bit integers, scaled by block", true, block_of(256), core::Listed::always,
                    {.sgd = 0.0096, .adaptive = 0.0095});
}

CompressorRow int4() {
  return row<kInt4>("int4", "4-bit integers, scaled by block", true, kSmallBlock, core::Listed::for_adaptive,
                    {.adaptive = 0.15});
}

CompressorRow fp8e4m3() {
  return row<kFp8E4M3>("fp8e4m3", "8-bit numbers with 4 bits of precision, scaled by block", true, block_of(128));
}

CompressorRow fp8e5m2() {
  return row<kFp8E5M2>("fp8e5m2", "8-bit numbers with 3 bits of precision, scaled by block", true, block_of(128));
}

CompressorRow natural() { return row<kNatural>("natural", "powers of two, rounded at random", false, {}); }

CompressorRow terngrad() {
  return row<kTernGrad>("terngrad", "-1, 0 or 1, scaled by block, rounded at random", false, block_of(256));
}

CompressorRow qsgd() {
  return row<kQsgd>("qsgd", "integers of so many bits, scaled by the norm of 128 elements, rounded at random", false,
                    {"bits", 8, 1, 8, 1, kBits});
}

}  // namespace gradtune::compress
