// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Top-k: the k = ceil(density * n) elements of the largest |p|, exactly, ties to the lower index.
//
// Payload: header (count = k), the indices in ascending order, then the fp32 values; 8 bytes per sent element.
// Encode with error feedback reads gradient and residual and writes the next residual: 12 bytes per element, and one
// cache line for each sent element. Decode writes 4 bytes per element and reads the payloads.
// Accuracy: Fashion-MNIST, 468 steps, density 0.01: as fp32.
#include <bit>
#include <cmath>
#include <limits>

#include "engine/compress/rows.h"
#include "engine/compress/shared.h"
#include "engine/compress/topk_select.h"

namespace gradtune::compress {
namespace {

constexpr uint32_t kId = compressor_id("topk");

struct Layout {
  int64_t k, indices_at, values_at, bytes;

  Layout(const core::CompressorSpec& spec, int64_t n)
      : k(sent(spec.parameter, n)),
        indices_at(sizeof(PayloadHeader)),
        values_at(indices_at + section_bytes(k * 4)),
        bytes(values_at + section_bytes(k * 4)) {}

  // Products that are whole but for rounding count as whole: 0.07 of 100 is 7.
  static int64_t sent(double density, int64_t n) {
    return std::min(
        n, static_cast<int64_t>(std::ceil(density * static_cast<double>(n) * (1 - 0x1p-50))));
  }
};

class TopK final : public Compressor {
 public:
  TopK(core::CompressorSpec spec, const core::CompressorTraits& traits)
      : spec_(std::move(spec)), traits_(traits) {}

  const core::CompressorTraits& traits() const override { return traits_; }
  const core::CompressorSpec& spec() const override { return spec_; }
  int64_t scratch_bytes(int64_t n) const override {
    return TopkSelection::scratch_bytes(n, Layout(spec_, n).k);
  }

  bool encode(const Encode& job, Queue& queue) const override {
    check_encode(*this, job);
    const auto n = static_cast<int64_t>(job.gradient.size());
    const Layout layout(spec_, n);
    auto* indices = reinterpret_cast<uint32_t*>(job.payload.data() + layout.indices_at);
    auto* values = reinterpret_cast<float*>(job.payload.data() + layout.values_at);
    write_header(job.payload, kId, n, layout.k);
    std::fill(indices + layout.k, reinterpret_cast<uint32_t*>(values), 0U);
    std::fill(values + layout.k, reinterpret_cast<float*>(job.payload.data() + layout.bytes), 0.0F);
    if (n == 0 || TopkSelection(job, layout.k, queue).run(indices, values)) return true;
    // What is not finite has no order. The payload says as much to those who decode it.
    for (int64_t i = 0; i < layout.k; ++i) indices[i] = static_cast<uint32_t>(i);
    std::fill_n(values, layout.k, std::numeric_limits<float>::quiet_NaN());
    return false;
  }

  core::Status decode(std::span<const std::span<const std::byte>> payloads, std::span<float> out,
                      bool accumulate, Queue& queue) const override {
    const auto n = static_cast<int64_t>(out.size());
    const Layout layout(spec_, n);
    core::Status status = check_frames(payloads, layout.bytes, kId, n, layout.k);
    if (status.ok()) status = check_indices(payloads, layout, n, queue);
    if (!status.ok()) return status;
    const bool streamed = n * 4 >= kStreamBytes;
    for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
      alignas(64) float tile[kBlockElements];
      float* const place = out.data() + begin;
      float* const sums = streamed ? tile : place;
      if (!accumulate) std::fill_n(sums, end - begin, 0.0F);
      if (accumulate && streamed) std::copy_n(place, end - begin, sums);
      for (const std::span<const std::byte>& payload : payloads) {
        add_range(payload, layout, begin, end, sums);
      }
      if (streamed) stream_floats(sums, place, static_cast<size_t>(end - begin));
    });
    return {};
  }

 private:
  // Ascending and below n, or rejected.
  static core::Status check_indices(std::span<const std::span<const std::byte>> payloads,
                                    const Layout& layout, int64_t n, Queue& queue) {
    for (size_t i = 0; i < payloads.size(); ++i) {
      const auto* indices =
          reinterpret_cast<const uint32_t*>(payloads[i].data() + layout.indices_at);
      const int64_t last = std::max<int64_t>(layout.k - 1, 0);
      int64_t bad =
          find_first(queue, last, [indices](int64_t j) { return indices[j] >= indices[j + 1]; });
      if (bad == last && (layout.k == 0 || indices[last] < n)) continue;
      const std::string next =
          bad < last ? ", the next one " + std::to_string(indices[bad + 1]) : "";
      return bad_payload(i, payloads.size(),
                         "index " + std::to_string(bad) + " is " + std::to_string(indices[bad]) +
                             next + "; they ascend and are below " + std::to_string(n));
    }
    return {};
  }

  // Adds the elements in [begin, end) of a payload.
  static void add_range(std::span<const std::byte> payload, const Layout& layout, int64_t begin,
                        int64_t end, float* sums) {
    const auto* indices = reinterpret_cast<const uint32_t*>(payload.data() + layout.indices_at);
    const auto* values = reinterpret_cast<const float*>(payload.data() + layout.values_at);
    int64_t i = std::lower_bound(indices, indices + layout.k, begin) - indices;
    for (; i < layout.k && indices[i] < end; ++i) sums[indices[i] - begin] += values[i];
  }

  core::CompressorSpec spec_;
  core::CompressorTraits traits_;
};

}  // namespace

TableRow topk() {
  return {.traits = {.name = "topk",
                     .summary = "the largest elements, this share of all",
                     .fidelity = core::Fidelity::lossy,
                     .in_default_list = true,
                     .summable = false,
                     .error_feedback = true,
                     .parameter_name = "density",
                     .parameter_default = 0.01,
                     .parameter_min = 1e-6,
                     .parameter_max = 1,
                     .payload_bytes = [](const core::CompressorSpec& spec,
                                         int64_t n) { return Layout(spec, n).bytes; }},
          .make = [](const core::CompressorSpec& spec, const core::CompressorTraits& traits)
              -> std::unique_ptr<Compressor> { return std::make_unique<TopK>(spec, traits); }};
}

}  // namespace gradtune::compress
