// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Integers of 4 or 3 bits, of the values and with the error feedback of int4 (block_codes.cc), with as few bits as
// Rice's code needs for them (rice_kernels.h). Most elements of a block are much smaller than its largest one, so
// integers near 0 are frequent: 4 bits become 3.6 where numbers are normally distributed, in blocks of 256.
//
// Payload, in this order: the header (count = used bytes / 16); the bfloat16 units of blocks; the end of each run's
// stream, as 32 bits in units of 8 bytes; the streams. A run is whole blocks of at most 8192 elements. There is room
// for the worst case, all bits of every integer. The bytes behind the last stream are left alone and need not be sent
// (used_bytes). Gloo does not send them; other backends send all bytes, and gain nothing.
//
// Bytes moved per element: as the integers alone, with the streams in place of codes. Codes, and streams until it is
// known where they go, stay in the caches.
#include <atomic>
#include <cstring>

#include "engine/compress/blocks.h"
#include "engine/compress/codes/block_codes_kernels.h"
#include "engine/compress/codes/int_packed_layout.h"
#include "engine/compress/codes/rice_kernels.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {
namespace {

constexpr int64_t kRun = kIntPackedRun, kUnit = kIntPackedUnit;
constexpr int64_t kRunsAtOnce = 64;  // whose streams are made before they are put together: half a MiB at most
constexpr int64_t kScaleBytes = unit_bytes(CodeFormat::Unit::bf16);

using Layout = IntPackedLayout;

constexpr CodeFormat format_of(int bits) {
  return {.codes = CodeFormat::Codes::nearest, .bits = bits, .unit = CodeFormat::Unit::bf16, .planes = false};
}

template <class Bytes>
auto* ends_of(Bytes payload, const Layout& layout) {
  using End = std::conditional_t<std::is_const_v<typename Bytes::element_type>, const uint32_t, uint32_t>;
  return reinterpret_cast<End*>(payload.data() + layout.ends_at);
}

// The begin of a run's stream, behind the stream of the previous run.
int64_t begin_of(const uint32_t* ends, int64_t run) { return run == 0 ? 0 : int64_t{ends[run - 1]} * kUnit; }

class IntPacked final : public HostCompressor {
 public:
  IntPacked(core::CompressorSpec spec, const core::CompressorTraits& traits)
      : HostCompressor(std::move(spec), traits), code_(int_packed_code_of(this->spec().name)) {}

  int64_t scratch_bytes(const core::Extent& extent) const override {
    const Layout layout = int_packed_layout(spec(), extent.numel);
    return std::min(layout.runs, kRunsAtOnce) * layout.most_of_run;
  }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.gradient.size());
    const Layout layout = int_packed_layout(spec(), n);
    uint32_t* const ends = ends_of(job.payload, layout);
    std::atomic<bool> finite = true;
    for (int64_t first = 0; first < layout.runs; first += kRunsAtOnce) {
      const int64_t runs = std::min(kRunsAtOnce, layout.runs - first);
      const auto place = [&](int64_t i) { return job.scratch.data() + i * layout.most_of_run; };
      for_blocks(queue, runs, [&](int64_t i) {
        if (!encode_run(job, layout, first + i, place(i))) finite.store(false, std::memory_order_relaxed);
      });
      for (int64_t run = std::max<int64_t>(first, 1); run < first + runs; ++run) ends[run] += ends[run - 1];
      for_blocks(queue, runs, [&](int64_t i) {
        const int64_t begin = begin_of(ends, first + i), end = begin_of(ends, first + i + 1);
        std::memcpy(job.payload.data() + layout.streams_at + begin, place(i), static_cast<size_t>(end - begin));
      });
    }
    write_frame(job.payload, layout, n);
    return finite.load(std::memory_order_relaxed);
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    const Layout layout = int_packed_layout(spec(), n);
    const Counts counts{layout.streams_at / kUsedUnit, layout.bytes / kUsedUnit};
    if (Rejected bad = check_frames(job.payloads, layout.bytes, code_.id, n, counts)) return bad;
    for (size_t p = 0; p < job.payloads.size(); ++p) {
      const int64_t used = layout.streams_at + begin_of(ends_of(job.payloads[p], layout), layout.runs);
      if (section_bytes(used) == used_bytes(job.payloads[p])) continue;
      return Rejection{p, "the end of its streams is not where its header says"};
    }
    std::atomic<bool> good = true;
    Largest accepted;  // complement of the lowest position of a bad payload
    for_ranges(queue, n, layout.run, [&](int64_t begin, int64_t end) {
      const size_t decoded = decode_run(job, layout, begin, end);
      accepted.add(static_cast<uint32_t>(job.payloads.size() - decoded));
      if (!scales_are_good(job.payloads, layout.scales, begin, end)) good.store(false, std::memory_order_relaxed);
    });
    if (!good.load(std::memory_order_relaxed)) return bad_scale(job.payloads, layout.scales);
    if (accepted.get() == 0) return {};
    return Rejection{job.payloads.size() - accepted.get(), "the end of a stream is not where it should be"};
  }

 private:
  static constexpr size_t kAtOnce = 8;

  // A payload of that run alone, with its codes as bytes.
  struct Unpacked {
    std::array<std::byte, kRun / kPlaneElements * kScaleBytes> units;
    std::array<uint8_t, kRun + kRiceGroup> codes;
  };

  // Writes the run's units, its stream to `to`, and how long that is where its end will stand.
  bool encode_run(const Encode& job, const Layout& layout, int64_t run, std::byte* to) const {
    const int64_t begin = run * layout.run;
    const int64_t end = std::min(begin + layout.run, static_cast<int64_t>(job.gradient.size()));
    std::array<uint8_t, kRun + kRiceGroup> codes;
    const CodeTarget target{.random = job.work.random,
                            .first_element = static_cast<uint64_t>(job.work.first_element + begin),
                            .units = job.payload.data() + layout.scales.scales_at + begin / layout.block * kScaleBytes,
                            .codes = codes.data(),
                            .block = static_cast<size_t>(layout.block),
                            .stream = job.gradient.size_bytes() >= kStreamBytes,
                            .stream_codes = false};
    const bool is_finite = encode_codes(format_of(code_.bits), run_of(job, begin, end), target);
    const size_t bytes = pack_rice(codes.data(), static_cast<size_t>(end - begin), code_.bits, to);
    ends_of(job.payload, layout)[run] = static_cast<uint32_t>(static_cast<int64_t>(bytes) / kUnit);
    return is_finite;
  }

  void write_frame(std::span<std::byte> payload, const Layout& layout, int64_t n) const {
    const auto zero = [&](int64_t begin, int64_t end) {
      std::memset(payload.data() + begin, 0, static_cast<size_t>(end - begin));
    };
    const int64_t used = layout.streams_at + begin_of(ends_of(payload, layout), layout.runs);
    write_header(payload, code_.id, n, section_bytes(used) / kUsedUnit);
    zero(layout.scales.scales_at + layout.scales.scales * kScaleBytes, layout.ends_at);
    zero(layout.ends_at + layout.runs * 4, layout.streams_at);
    zero(used, section_bytes(used));  // what is behind is left as it is
  }

  // Returns the position of the first payload whose stream of the run is not as long as it should be, or the number of
  // payloads, which are decoded then.
  size_t decode_run(const Decode& job, const Layout& layout, int64_t begin, int64_t end) const {
    std::array<Unpacked, kAtOnce> unpacked;
    std::array<std::span<const std::byte>, kAtOnce> spans;
    const int64_t run = begin / layout.run;
    const auto unit_bytes = static_cast<size_t>((end - begin + layout.block - 1) / layout.block * kScaleBytes);
    for (size_t first = 0; first < job.payloads.size(); first += kAtOnce) {
      const size_t count = std::min(kAtOnce, job.payloads.size() - first);
      for (size_t p = 0; p < count; ++p) {
        const std::span<const std::byte> payload = job.payloads[first + p];
        const uint32_t* const ends = ends_of(payload, layout);
        const int64_t from = begin_of(ends, run), to = begin_of(ends, run + 1);
        if (to < from || layout.streams_at + to + kRiceSlack > layout.bytes) return first + p;
        const std::span<const std::byte> stream =
            payload.subspan(static_cast<size_t>(layout.streams_at + from), static_cast<size_t>(to - from));
        if (!unpack_rice(stream, static_cast<size_t>(end - begin), code_.bits, unpacked[p].codes.data()))
          return first + p;
        std::memcpy(unpacked[p].units.data(),
                    payload.data() + layout.scales.scales_at + begin / layout.block * kScaleBytes, unit_bytes);
        spans[p] = {reinterpret_cast<const std::byte*>(&unpacked[p]), sizeof(Unpacked)};
      }
      decode_codes(format_of(code_.bits), {.payloads = {spans.data(), count},
                                           .units_at = offsetof(Unpacked, units),
                                           .codes_at = offsetof(Unpacked, codes),
                                           .out = job.out.data() + begin,
                                           .block = static_cast<size_t>(layout.block),
                                           .n = static_cast<size_t>(end - begin),
                                           .accumulate = job.accumulate || first > 0,
                                           .stream = static_cast<int64_t>(job.out.size()) * 4 >= kStreamBytes});
    }
    return job.payloads.size();
  }

  const IntPackedCode& code_;
};

constexpr double kBlocks[] = {64, 256, 1024};

CompressorRow row(std::string_view name, std::string_view summary, double usual_use,
                  core::Listed listed = core::Listed::never, core::SeenError seen_error = {}) {
  return {.traits = {.name = name,
                     .summary = summary,
                     .fidelity = core::Fidelity::lossy,
                     .listed = listed,
                     .seen_error = seen_error,
                     .summable = false,
                     .error_feedback = true,
                     .parameter_name = "block",
                     .parameter_default = 256,
                     .parameter_min = kPlaneElements,
                     .parameter_max = kRun,
                     .parameter_step = kPlaneElements,
                     .parameter_search = kBlocks,
                     .payload_bytes = [](const core::CompressorSpec& spec, const core::Extent& extent,
                                         int) { return int_packed_layout(spec, extent.numel).bytes; },
                     .used_bytes = used_bytes,
                     .usual_use = usual_use},
          .make = make_as<IntPacked>};
}

}  // namespace

CompressorRow int4packed() {
  return row("int4packed", "4-bit integers, scaled by block, in as few bits as it takes", 0.72,
             core::Listed::for_adaptive, {.sgd = 0.13, .adaptive = 0.22});
}

CompressorRow int3packed() {
  CompressorRow made = row("int3packed", "3-bit integers, scaled by block, in as few bits as it takes", 0.65,
                           core::Listed::always, {.sgd = 0.36, .adaptive = 0.46});
  made.traits.dense_first = 80;
  return made;
}

}  // namespace gradtune::compress
