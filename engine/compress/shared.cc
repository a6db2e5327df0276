// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/shared.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/philox.h"

namespace gradtune::compress {

void write_header(std::span<std::byte> payload, uint32_t compressor, int64_t n, int64_t count) {
  const PayloadHeader header{kPayloadMagic, compressor, static_cast<uint32_t>(n), static_cast<uint32_t>(count)};
  std::memcpy(payload.data(), &header, sizeof header);
}

PayloadHeader header_of(std::span<const std::byte> payload) {
  PayloadHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  return header;
}

int64_t used_bytes(std::span<const std::byte> payload) {
  const int64_t used = int64_t{header_of(payload).count} * kUsedUnit;
  return std::clamp(used, static_cast<int64_t>(sizeof(PayloadHeader)), static_cast<int64_t>(payload.size()));
}

Rejected check_sizes(std::span<const std::span<const std::byte>> payloads, int64_t bytes) {
  core::check(!payloads.empty(), "a decode has at least one payload");
  for (size_t i = 0; i < payloads.size(); ++i) {
    if (payloads[i].size() != static_cast<size_t>(bytes)) {
      return Rejection{i, fmt::format("size is {} bytes, not {}", payloads[i].size(), bytes)};
    }
  }
  return {};
}

Rejected check_frames(std::span<const std::span<const std::byte>> payloads, int64_t bytes, uint32_t compressor,
                      int64_t n, const Counts& counts) {
  if (Rejected bad = check_sizes(payloads, bytes)) return bad;
  for (size_t i = 0; i < payloads.size(); ++i) {
    core::check(reinterpret_cast<uintptr_t>(payloads[i].data()) % 16 == 0, "payloads are 16-byte aligned");
    const PayloadHeader header = header_of(payloads[i]);
    const struct {
      std::string_view name;
      uint32_t value;
      Counts allowed;
    } fields[] = {{"magic or version", header.magic, kPayloadMagic},
                  {"compressor id", header.compressor, compressor},
                  {"number of elements", header.n, n},
                  {"count", header.count, counts}};
    for (const auto& [name, value, allowed] : fields) {
      if (allowed.least <= value && value <= allowed.most) continue;
      const std::string rule = allowed.least == allowed.most
                                   ? fmt::format("not {:#x}", allowed.most)
                                   : fmt::format("not from {:#x} to {:#x}", allowed.least, allowed.most);
      return Rejection{i, fmt::format("{} is {:#x}, {}", name, value, rule)};
    }
  }
  return {};
}

void check_encode(const Compressor& compressor, const Encode& job) {
  const auto n = static_cast<int64_t>(job.gradient.size());
  const core::Extent extent{n, job.work.matrices};
  const int round = job.work.round;
  core::check(round >= 0 && round < compressor.traits().rounds, "the round is one of the compressor's");
  core::check(static_cast<int64_t>(job.payload.size()) == compressor.payload_bytes(extent, round),
              "the payload has payload_bytes");
  core::check(static_cast<int64_t>(job.scratch.size()) >= compressor.scratch_bytes(extent),
              "scratch has scratch_bytes");
  core::check(job.verdict != nullptr, "a call has somewhere to tell what it found");
  core::check(job.scale > 0, "the scale is positive");
  core::check(job.summed > 0, "a sum has at least one payload");
  core::check(job.residual_next == nullptr || job.residual_next != job.residual,
              "residual and next residual are different memory");
  core::check(job.residual == nullptr || (job.residual_next != nullptr && !job.add_to_residual_next),
              "a residual has a next one, which is written anew");
  if (compressor.traits().summable) return;
  core::check(n <= std::numeric_limits<uint32_t>::max(), "opaque payloads count elements in 32 bits");
  core::check(reinterpret_cast<uintptr_t>(job.payload.data()) % 16 == 0, "payloads are 16-byte aligned");
  core::check(reinterpret_cast<uintptr_t>(job.scratch.data()) % 16 == 0, "scratch is 16-byte aligned");
}

void HostCompressor::encode(const Encode& job, Queue& queue) const {
  check_encode(*this, job);
  if (!encode_on_host(job, host(queue))) job.verdict->nonfinite = 1;
  job.verdict->used_bytes +=
      traits_.used_bytes != nullptr ? traits_.used_bytes(job.payload) : static_cast<int64_t>(job.payload.size());
}

void HostCompressor::decode(const Decode& job, Queue& queue) const {
  core::check(job.verdict != nullptr, "a call has somewhere to tell what it found");
  const Rejected bad = decode_on_host(job, host(queue));
  if (bad && job.verdict->rejected == 0) job.verdict->rejected = static_cast<uint32_t>(bad->position) + 1;
}

core::Error HostCompressor::defect(const Decode& job, size_t position) const {
  std::vector<float> out(job.out.size());
  Decode alone = job;
  alone.payloads = job.payloads.subspan(position, 1);
  alone.out = out;
  alone.accumulate = false;
  const Rejected bad = decode_on_host(alone, *make_serial_queue());
  core::check(bad.has_value(), "a payload that was rejected has a defect");
  return {core::Error::Code::corrupt, fmt::format("payload {} of {}: {}", position, job.payloads.size(), bad->what)};
}

float unsent_factor(const Encode& job) {
  const double product = double{job.scale} * job.error_scale;
  return std::abs(product - 1) < 0x1p-23 ? 1.0F : static_cast<float>(product);
}

EncodeRun run_of(const Encode& job, int64_t begin, int64_t end) {
  return {.gradient = job.gradient.data() + begin,
          .residual = offset(job.residual, begin),
          .residual_next = offset(job.residual_next, begin),
          .add_to_residual_next = job.add_to_residual_next,
          .scale = job.scale,
          .error_scale = job.error_scale,
          .unsent_factor = unsent_factor(job),
          .n = static_cast<size_t>(end - begin)};
}

int64_t share_of(double share, int64_t n) {
  return std::min(n, static_cast<int64_t>(std::ceil(share * static_cast<double>(n) * (1 - 0x1p-50))));
}

std::array<uint32_t, 4> shared_random(const Random& random, int64_t element) {
  const auto position = static_cast<uint64_t>(element);
  return core::philox4x32(
      {static_cast<uint32_t>(position), random.step, static_cast<uint32_t>(position >> 32), random.use | kSharedUse},
      {static_cast<uint32_t>(random.seed), static_cast<uint32_t>(random.seed >> 32)});
}

bool finite_product(float factor, uint32_t abs_bits) { return std::isfinite(factor * std::bit_cast<float>(abs_bits)); }

}  // namespace gradtune::compress
