// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/cuda/table.h"

#include <algorithm>
#include <string>

namespace gradtune::compress::cuda {

using Made = std::unique_ptr<Compressor>;
#define GRADTUNE_COMPRESSOR(name, device) Made device(Made host);
#include "engine/compress/table.inc"
#undef GRADTUNE_COMPRESSOR

std::span<const DeviceRow> device_table() {
#define GRADTUNE_COMPRESSOR(name, device) {#name, device},
  static constexpr DeviceRow kRows[] = {
#include "engine/compress/table.inc"
  };
#undef GRADTUNE_COMPRESSOR
  return kRows;
}

core::Result<std::unique_ptr<Compressor>> make_device_compressor(const core::CompressorSpec& spec) {
  core::Result<Made> host = make_compressor(spec);
  if (!host) return host.error();
  const auto rows = device_table();
  const auto row = std::ranges::find(rows, spec.name, &DeviceRow::name);
  if (row == rows.end()) {
    return core::Error{core::Error::Code::invalid,
                       "compressor \"" + spec.name + "\" has no implementation on a device"};
  }
  return row->make(std::move(host).value());
}

}  // namespace gradtune::compress::cuda
