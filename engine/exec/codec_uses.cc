// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/codec_uses.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/arenas.h"
#include "engine/exec/device.h"
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
struct SamplePiece {
  size_t tensor;
  int64_t numel;
  int64_t bytes;
  const std::byte* data;
};

std::vector<SamplePiece> pieces_of(const core::GradientTable& table, const Arenas& arenas) {
  std::vector<size_t> largest(table.tensors.size());
  std::iota(largest.begin(), largest.end(), size_t{0});
  std::ranges::stable_sort(largest, std::greater(), [&](size_t t) { return table.tensors[t].numel; });
  largest.resize(std::min(largest.size(), kMostTensors));
  const core::ArenaLayout layout = core::lay_arenas(table);
  std::vector<SamplePiece> pieces;
  for (const size_t t : largest) {
    const core::TensorInfo& tensor = table.tensors[t];
    if (tensor.numel < kLeastElements || tensor.content.of_one < 1) continue;
    const auto [arena, begin] = layout.tensors[t];
    const int64_t numel = std::min(tensor.numel, kMostElements), width = core::bytes_per_element(tensor.dtype);
    pieces.push_back({t, numel, numel * width,
                      arenas[static_cast<size_t>(arena)].data + (begin + (tensor.numel - numel) / 2) * width});
  }
  return pieces;
}

// Those on a device are copied to the memory that is returned. Those that the host does not reach are left out.
AlignedBytes bring(std::vector<SamplePiece>& pieces, const core::GradientTable& table, Device* device,
                   int64_t timeout_ms) {
  const auto is_away = [&](const SamplePiece& piece) { return table.tensors[piece.tensor].space != core::Space::host; };
  int64_t bytes = 0;
  for (const SamplePiece& piece : pieces) bytes += is_away(piece) ? aligned(piece.bytes) : 0;
  if (device == nullptr) std::erase_if(pieces, is_away);
  if (device == nullptr || bytes == 0) return {};
  AlignedBytes memory = AlignedBytes::zeros(bytes, &device->pinned());
  compress::Queue& queue = device->current();
  std::byte* to = memory.data();
  for (SamplePiece& piece : pieces) {
    if (!is_away(piece)) continue;
    queue.copy(to, std::exchange(piece.data, to), piece.bytes);
    to += aligned(piece.bytes);
  }
  if (queue.mark().wait(timeout_ms)) return memory;
  std::erase_if(pieces, is_away);
  memory.abandon();  // copies that are late still write there
  return {};
}

std::vector<Sampled> sample(const core::GradientTable& table, const Arenas& arenas, Device* device, int64_t timeout_ms,
                            compress::HostQueue& queue) {
  std::vector<SamplePiece> pieces = pieces_of(table, arenas);
  const AlignedBytes memory = bring(pieces, table, device, timeout_ms);
  std::vector<Sampled> sampled;
  for (const SamplePiece& piece : pieces) {
    const core::TensorInfo& tensor = table.tensors[piece.tensor];
    const std::span<const std::byte> numbers(piece.data, static_cast<size_t>(piece.bytes));
    Sampled& one =
        sampled.emplace_back(std::vector<float>(static_cast<size_t>(piece.numel)), static_cast<double>(tensor.numel));
    compress::Verdict verdict;
    compress::make_compressor({plain_codec(tensor.dtype)})
        .value()
        ->decode({.payloads = {&numbers, 1}, .out = one.values, .verdict = &verdict}, queue);
  }
  return sampled;
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
                                       std::span<const core::CompressorSpec> codecs, Device* device,
                                       int64_t timeout_ms) {
  const auto queue = compress::make_serial_queue();
  std::vector<Sampled> pieces;
  std::vector<core::CodecUse> uses;
  for (const core::CompressorSpec& spec : codecs) {
    const std::unique_ptr<compress::Compressor> codec = compress::make_compressor(spec).value();
    const core::CompressorTraits& traits = codec->traits();
    if (traits.used_bytes == nullptr || traits.takes_rows) continue;
    if (pieces.empty()) pieces = sample(table, arenas, device, timeout_ms, *queue);
    if (const double share = share_of(*codec, pieces, *queue); share > 0) uses.push_back({to_string(spec), share});
  }
  return uses;
}

}  // namespace gradtune::exec
