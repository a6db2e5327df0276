// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The compressors that lose nothing: `packed` sends fp32 numbers, `bf16packed` bfloat16 ones, with as few bits of
// exponent as each group of 64 needs (packed_kernels.h). Neighbouring gradients differ in magnitude by a few powers of
// two, so that 8 bits of exponent become 3 or 4 (entropy: 3.4 to 3.8 bits in the gradients of the Fashion-MNIST model);
// fractions and signs are noise, and stay as they are. It is exponents that lossless compressors of floats live on
// (Hershcovitch et al., "ZipNN", 2024; Zhang et al., "DFloat11", 2025, both of weights).
//
// Payload: header (count = used bytes / 16); for each run of 8192 elements where its groups end, in units of 8 bytes of
// 32 bits; the groups' headers; the groups. There is room for the worst case, a little more than the numbers
// themselves; what is behind the last group is left as it was and need not be sent (used_bytes). Over Gloo it is not;
// other backends carry all of it, and gain nothing. Normal numbers take 28 of 32 and 12 of 16 bits, gradients of the
// Fashion-MNIST model 24 to 26 and 8 to 10, as every tenth group is zeros.
//
// Bytes moved per element: encode reads 4, or 8 with error feedback. It reads them once from memory and once more from
// the L2 cache, because headers come before groups, and writes the groups. Decode reads the groups of all payloads and
// writes 4.
#include <atomic>
#include <cstring>
#include <vector>

#include "engine/compress/packed/packed_kernels.h"
#include "engine/compress/packed/packed_layout.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {
namespace {

using Layout = PackedLayout;
constexpr int64_t kRun = kPackedRun, kUnit = kPackedUnit;

// For each thread: 512 KiB, which fits most L2 caches.
constexpr int64_t kCachedElements = 16 * kBlockElements;

constexpr int64_t count_of(int64_t n, int64_t step) { return (n + step - 1) / step; }

Layout layout_of(PackedType type, int64_t n) { return packed_layout(type, n); }

template <class Bytes>
auto* ends_of(Bytes payload) {
  using End = std::conditional_t<std::is_const_v<typename Bytes::element_type>, const uint32_t, uint32_t>;
  return reinterpret_cast<End*>(payload.data() + sizeof(PayloadHeader));
}

template <class Bytes>
auto* headers_of(Bytes payload, const Layout& layout) {
  using Header = std::conditional_t<std::is_const_v<typename Bytes::element_type>, const GroupHeader, GroupHeader>;
  return reinterpret_cast<Header*>(payload.data() + layout.headers_at);
}

// The begin of the groups of run `run`, behind the groups of the previous run.
int64_t begin_of(const uint32_t* ends, int64_t run) { return run == 0 ? 0 : int64_t{ends[run - 1]} * kUnit; }

class Packed final : public HostCompressor {
 public:
  Packed(core::CompressorSpec spec, const core::CompressorTraits& traits, PackedType type)
      : HostCompressor(std::move(spec), traits), type_(type), id_(packed_id(type)) {}

  int64_t scratch_bytes(const core::Extent& /*extent*/) const override { return 0; }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.gradient.size());
    const Layout layout = layout_of(type_, n);
    uint32_t* const ends = ends_of(job.payload);
    GroupHeader* const headers = headers_of(job.payload, layout);
    const bool stream = n * 4 >= kStreamBytes;
    std::byte* const groups = job.payload.data() + layout.groups_at;
    std::atomic<bool> finite = true;
    // The place of a run's groups is known when all earlier runs have their headers. So numbers are read twice, the
    // second time from the cache, in pieces that fit there.
    const int64_t slab = queue.threads() * kCachedElements;
    for (int64_t first = 0; first < n; first += slab) {
      const int64_t count = std::min(slab, n - first), task = task_elements(count);
      for_ranges(queue, count, task, [&](int64_t from, int64_t to) {
        for (int64_t begin = first + from; begin < first + to; begin += kRun) {
          const auto [bytes, is_finite] = write_group_headers(
              type_, run_of(job, begin, std::min(first + to, begin + kRun)), stream, headers + begin / kGroupElements);
          ends[begin / kRun] = static_cast<uint32_t>(bytes / kUnit);
          if (!is_finite) finite.store(false, std::memory_order_relaxed);
        }
      });
      for (int64_t run = std::max<int64_t>(1, first / kRun); run < count_of(first + count, kRun); ++run) {
        ends[run] += ends[run - 1];
      }
      for_ranges(queue, count, task, [&](int64_t begin, int64_t end) {
        write_groups(type_, run_of(job, first + begin, first + end), stream, headers + (first + begin) / kGroupElements,
                     groups + begin_of(ends, (first + begin) / kRun));
      });
    }
    write_frame(job.payload, layout, n);
    return finite.load(std::memory_order_relaxed);
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const auto n = static_cast<int64_t>(job.out.size());
    const Layout layout = layout_of(type_, n);
    const Counts counts{layout.groups_at / kUsedUnit, layout.bytes / kUsedUnit};
    if (Rejected bad = check_frames(job.payloads, layout.bytes, id_, n, counts)) return bad;
    for (size_t p = 0; p < job.payloads.size(); ++p) {
      const int64_t used = layout.groups_at + begin_of(ends_of(job.payloads[p]), layout.runs);
      if (section_bytes(used) == used_bytes(job.payloads[p])) continue;
      return Rejection{p, "the end of its groups is not where its header says"};
    }
    Largest accepted;  // complement of the lowest position of a bad payload
    for_ranges(queue, n, kRun, [&](int64_t begin, int64_t end) {
      const size_t good = decode_run(job, layout, begin, end);
      accepted.add(static_cast<uint32_t>(job.payloads.size() - good));
    });
    if (accepted.get() == 0) return {};
    return Rejection{job.payloads.size() - accepted.get(), "the length of a group is not what its header says"};
  }

 private:
  void write_frame(std::span<std::byte> payload, const Layout& layout, int64_t n) const {
    const auto zero = [&](int64_t begin, int64_t end) {
      std::memset(payload.data() + begin, 0, static_cast<size_t>(end - begin));
    };
    const int64_t used = layout.groups_at + begin_of(ends_of(payload), layout.runs);
    write_header(payload, id_, n, section_bytes(used) / kUsedUnit);
    zero(static_cast<int64_t>(sizeof(PayloadHeader)) + layout.runs * 4, layout.headers_at);
    zero(layout.headers_at + layout.groups * static_cast<int64_t>(sizeof(GroupHeader)), layout.groups_at);
    zero(used, section_bytes(used));  // what is behind is left as it is
  }

  // Returns the position of the first payload whose groups of the run are not as long as they should be, or the number
  // of payloads, which are decoded then.
  size_t decode_run(const Decode& job, const Layout& layout, int64_t begin, int64_t end) const {
    std::array<PackedRun, kMostPackedRuns> runs;
    const std::span<float> out = job.out.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    for (size_t first = 0; first < job.payloads.size(); first += kMostPackedRuns) {
      const size_t count = std::min(kMostPackedRuns, job.payloads.size() - first);
      for (size_t p = 0; p < count; ++p) {
        const std::span<const std::byte> payload = job.payloads[first + p];
        const uint32_t* const ends = ends_of(payload);
        const int64_t from = begin_of(ends, begin / kRun), to = begin_of(ends, begin / kRun + 1);
        const GroupHeader* const headers = headers_of(payload, layout) + begin / kGroupElements;
        // A sum of valid lengths that is right for each run up to the last one ends where the payload does.
        if (bytes_of(headers, count_of(end - begin, kGroupElements)) != to - from) return first + p;
        if (layout.groups_at + to > static_cast<int64_t>(payload.size())) return first + p;
        runs[p] = {headers, payload.data() + layout.groups_at + from};
      }
      add_groups(type_, {runs.data(), count}, out, job.accumulate || first > 0,
                 /*stream=*/static_cast<int64_t>(job.out.size()) * 4 >= kStreamBytes);
    }
    return job.payloads.size();
  }

  // The bytes of that number of groups; negative if a header is invalid.
  int64_t bytes_of(const GroupHeader* headers, int64_t groups) const {
    int64_t bytes = 0;
    bool valid = true;
    for (int64_t g = 0; g < groups; ++g) {
      valid &= headers[g].bits <= 8 || headers[g].bits == GroupHeader::kNoGroup;
      bytes += group_bytes(type_, headers[g].bits);
    }
    return valid ? bytes : -1;
  }

  PackedType type_;
  uint32_t id_;
};

template <PackedType type>
CompressorRow row(std::string_view name, std::string_view summary, core::Fidelity fidelity, double usual_use) {
  return {.traits = {.name = name,
                     .summary = summary,
                     .fidelity = fidelity,
                     .listed = core::Listed::always,
                     .summable = false,
                     .error_feedback = false,
                     .parameter_name = "",
                     .payload_bytes = [](const core::CompressorSpec&, const core::Extent& extent,
                                         int) { return layout_of(type, extent.numel).bytes; },
                     .used_bytes = used_bytes,
                     .usual_use = usual_use,
                     .carries_nonfinite = true},
          .make = [](const core::CompressorSpec& spec, const core::CompressorTraits& traits)
              -> std::unique_ptr<Compressor> { return std::make_unique<Packed>(spec, traits, type); }};
}

}  // namespace

CompressorRow packed() {
  return row<PackedType::f32>("packed", "fp32 with as few bits of exponent as it takes", core::Fidelity::exact, 0.8);
}

CompressorRow bf16packed() {
  return row<PackedType::bf16>("bf16packed", "bfloat16 with as few bits of exponent as it takes", core::Fidelity::half,
                               0.7);
}

}  // namespace gradtune::compress
