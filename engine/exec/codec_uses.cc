// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/codec_uses.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/arenas.h"
#include "engine/exec/device.h"
#include "engine/exec/program.h"

namespace gradtune::exec {
namespace {

constexpr int64_t kMostPieces = 64;
constexpr int64_t kPieceElements = 1 << 14;
constexpr int64_t kLeastElements = 4096;  // in smaller tensors headers would dominate

struct SamplePiece {
  size_t tensor;
  int64_t numel;
  int64_t bytes;
  const std::byte* data;
};

bool is_sampled(const core::TensorInfo& tensor) {
  return tensor.numel >= kLeastElements && tensor.content.of_one >= 1 && tensor.dtype != core::DType::f64;
}

// All sampled tensors, one after the other, are cut into equal parts. A piece is taken around the middle of each
// part, within the tensor that contains the middle.
std::vector<SamplePiece> pieces_of(const core::GradientTable& table, const Arenas& arenas) {
  int64_t all = 0;
  for (const core::TensorInfo& tensor : table.tensors) all += is_sampled(tensor) ? tensor.numel : 0;
  const int64_t parts = std::clamp<int64_t>(all / kPieceElements, 1, kMostPieces);
  const core::ArenaLayout layout = core::lay_arenas(table);
  std::vector<SamplePiece> pieces;
  int64_t before = 0;
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    const core::TensorInfo& tensor = table.tensors[t];
    if (!is_sampled(tensor)) continue;
    const auto [arena, begin] = layout.tensors[t];
    const int64_t numel = std::min(tensor.numel, kPieceElements), width = core::bytes_per_element(tensor.dtype);
    const auto middle = [&] { return (2 * static_cast<int64_t>(pieces.size()) + 1) * all / (2 * parts) - before; };
    while (middle() < tensor.numel) {
      const int64_t first = std::clamp<int64_t>(middle() - numel / 2, 0, tensor.numel - numel);
      pieces.push_back({t, numel, numel * width, arenas[static_cast<size_t>(arena)].data + (begin + first) * width});
    }
    before += tensor.numel;
  }
  return pieces;
}

// Copies pieces on a device to the memory that is returned. Removes the pieces that the host cannot reach.
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
  memory.abandon();  // late copies still write there
  return {};
}

std::vector<std::vector<float>> sample(const core::GradientTable& table, const Arenas& arenas, Device* device,
                                       int64_t timeout_ms, compress::HostQueue& queue) {
  std::vector<SamplePiece> pieces = pieces_of(table, arenas);
  const AlignedBytes memory = bring(pieces, table, device, timeout_ms);
  std::vector<std::vector<float>> sampled;
  for (const SamplePiece& piece : pieces) {
    const std::span<const std::byte> numbers(piece.data, static_cast<size_t>(piece.bytes));
    std::vector<float>& values = sampled.emplace_back(static_cast<size_t>(piece.numel));
    compress::Verdict verdict;
    compress::make_compressor({plain_codec(table.tensors[piece.tensor].dtype)})
        .value()
        ->decode({.payloads = {&numbers, 1}, .out = values, .verdict = &verdict}, queue);
  }
  return sampled;
}

// Returns 0 if no piece was finite.
double share_of(const compress::Compressor& codec, std::span<const std::vector<float>> pieces,
                compress::HostQueue& queue) {
  double used = 0;
  int finite = 0;
  for (const std::vector<float>& values : pieces) {
    const core::Extent extent{static_cast<int64_t>(values.size()), {}};
    std::vector<std::byte> payload(static_cast<size_t>(codec.payload_bytes(extent, 0))),
        scratch(static_cast<size_t>(codec.scratch_bytes(extent)));
    compress::Verdict verdict;
    codec.encode({.gradient = values, .payload = payload, .scratch = scratch, .verdict = &verdict}, queue);
    if (verdict.nonfinite != 0) continue;
    used += static_cast<double>(codec.traits().used_bytes(payload)) / static_cast<double>(payload.size());
    ++finite;
  }
  return finite > 0 ? used / finite : 0;
}

}  // namespace

std::vector<core::CodecUse> codec_uses(const core::GradientTable& table, const Arenas& arenas,
                                       std::span<const core::CompressorSpec> codecs, Device* device,
                                       int64_t timeout_ms) {
  const auto queue = compress::make_serial_queue();
  std::vector<std::vector<float>> pieces;
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
