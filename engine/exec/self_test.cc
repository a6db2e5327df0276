// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/self_test.h"

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace gradtune::exec {
namespace {

constexpr int64_t kElements = 1000;

std::span<std::byte> bytes_of(const AlignedBytes& bytes) {
  return std::span(bytes.data(), static_cast<size_t>(bytes.bytes()));
}

std::span<float> floats_of(const AlignedBytes& bytes) {
  return std::span(reinterpret_cast<float*>(bytes.data()), static_cast<size_t>(kElements));
}

}  // namespace

core::Status self_test(const compress::Compressor& codec, compress::Queue& queue, const SelfTestMemory& memory,
                       int64_t timeout_ms) {
  std::array<float, kElements> numbers;
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(static_cast<int>(i % 17) - 8) * 0.125F;
  const auto zeros = [&](int64_t bytes) { return AlignedBytes::zeros(bytes, memory.device); };
  const core::Matrix matrix{0, 40, 20};
  const core::Extent extent{kElements, {&matrix, 1}};
  const AlignedBytes in = zeros(kElements * 4), out = zeros(kElements * 4), found = zeros(sizeof(compress::Verdict));
  const AlignedBytes from = AlignedBytes::zeros(kElements * 4, memory.pinned);
  std::memcpy(from.data(), numbers.data(), sizeof numbers);
  queue.copy(in.data(), from.data(), from.bytes());
  auto* const verdict = reinterpret_cast<compress::Verdict*>(found.data());
  const AlignedBytes scratch = zeros(codec.scratch_bytes(extent)), between = zeros(codec.round_bytes(extent));
  std::vector<AlignedBytes> payloads;
  for (int round = 0; round < codec.traits().rounds; ++round) {
    const compress::Work work{.matrices = extent.matrices, .round = round, .round_memory = between.data()};
    const AlignedBytes& payload = payloads.emplace_back(zeros(codec.payload_bytes(extent, round)));
    codec.encode({.gradient = floats_of(in),
                  .work = work,
                  .payload = bytes_of(payload),
                  .scratch = bytes_of(scratch),
                  .verdict = verdict},
                 queue);
    const std::span<const std::byte> spans[] = {bytes_of(payload)};
    codec.decode({.payloads = spans, .out = floats_of(out), .work = work, .verdict = verdict}, queue);
  }
  queue.copy(from.data(), found.data(), found.bytes());
  if (core::Status ended = queue.mark().wait(timeout_ms); !ended) return ended;
  compress::Verdict seen;
  std::memcpy(&seen, from.data(), sizeof seen);
  if (seen.nonfinite == 0 && seen.rejected == 0) return {};
  return core::Error{core::Error::Code::corrupt,
                     "compressor " + core::to_string(codec.spec()) + " failed its self-test: " +
                         (seen.nonfinite == 0 ? "its own payload was rejected" : "finite input was called non-finite")};
}

}  // namespace gradtune::exec
