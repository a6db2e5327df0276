// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/codec_uses.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "engine/compress/compressor.h"
#include "engine/core/arenas.h"
#include "engine/exec/program.h"

namespace gradtune::exec {
namespace {

constexpr size_t kMostTensors = 16;
constexpr int64_t kMostElements = 1 << 16;  // of each
constexpr int64_t kLeastElements = 4096;    // smaller ones would tell of headers

struct Sampled {
  std::vector<float> values;
  double weight;  // elements that it stands for
};

// From the middle of a tensor.
Sampled piece_of(const core::TensorInfo& tensor, const std::byte* gradient, compress::HostQueue& queue) {
  const int64_t n = std::min(tensor.numel, kMostElements), width = core::bytes_per_element(tensor.dtype);
  Sampled piece{.values = std::vector<float>(static_cast<size_t>(n)), .weight = static_cast<double>(tensor.numel)};
  const std::byte* const from = gradient + (tensor.numel - n) / 2 * width;
  const std::span<const std::byte> numbers(from, static_cast<size_t>(n * width));
  compress::Verdict verdict;
  compress::make_compressor({plain_codec(tensor.dtype)})
      .value()
      ->decode({.payloads = {&numbers, 1}, .out = piece.values, .verdict = &verdict}, queue);
  return piece;
}

std::vector<Sampled> sample(const core::GradientTable& table, const Arenas& arenas, compress::HostQueue& queue) {
  std::vector<size_t> largest(table.tensors.size());
  std::iota(largest.begin(), largest.end(), size_t{0});
  std::ranges::stable_sort(largest, std::greater(), [&](size_t t) { return table.tensors[t].numel; });
  largest.resize(std::min(largest.size(), kMostTensors));
  const core::ArenaLayout layout = core::lay_arenas(table);
  std::vector<Sampled> pieces;
  for (const size_t t : largest) {
    const core::TensorInfo& tensor = table.tensors[t];
    if (tensor.numel < kLeastElements || tensor.space != core::Space::host || tensor.content.of_one < 1) continue;
    const auto [arena, begin] = layout.tensors[t];
    const std::byte* const gradient =
        arenas[static_cast<size_t>(arena)].data + begin * core::bytes_per_element(tensor.dtype);
    pieces.push_back(piece_of(tensor, gradient, queue));
  }
  return pieces;
}

// 0 where nothing was finite.
double share_of(const compress::Compressor& codec, std::span<const Sampled> pieces, compress::HostQueue& queue) {
  double used = 0, all = 0;
  for (const Sampled& piece : pieces) {
    const core::Extent extent{static_cast<int64_t>(piece.values.size()), {}};
    std::vector<std::byte> payload(static_cast<size_t>(codec.payload_bytes(extent, 0))),
        scratch(static_cast<size_t>(codec.scratch_bytes(extent)));
    compress::Verdict verdict;
    codec.encode({.gradient = piece.values, .payload = payload, .scratch = scratch, .verdict = &verdict}, queue);
    if (verdict.nonfinite != 0) continue;
    used +=
        piece.weight * static_cast<double>(codec.traits().used_bytes(payload)) / static_cast<double>(payload.size());
    all += piece.weight;
  }
  return all > 0 ? used / all : 0;
}

}  // namespace

std::vector<core::CodecUse> codec_uses(const core::GradientTable& table, const Arenas& arenas,
                                       std::span<const core::CompressorSpec> codecs) {
  const auto queue = compress::make_serial_queue();
  std::vector<Sampled> pieces;
  std::vector<core::CodecUse> uses;
  for (const core::CompressorSpec& spec : codecs) {
    const std::unique_ptr<compress::Compressor> codec = compress::make_compressor(spec).value();
    const core::CompressorTraits& traits = codec->traits();
    if (traits.used_bytes == nullptr || traits.takes_rows) continue;
    if (pieces.empty()) pieces = sample(table, arenas, *queue);
    if (const double share = share_of(*codec, pieces, *queue); share > 0) uses.push_back({to_string(spec), share});
  }
  return uses;
}

}  // namespace gradtune::exec
