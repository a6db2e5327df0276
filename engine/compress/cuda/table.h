// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of compressors' implementations on a device: a row for each one of the compressor table, by name. Its
// library, gradtune_compress_cuda, is there where a build has nvcc; tests have the same kernels on the host.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "engine/compress/compressor.h"

namespace gradtune::compress::cuda {

struct DeviceRow {
  std::string_view name;
  // From the host's compressor of the spec, which has all that is not work.
  std::unique_ptr<Compressor> (*make)(std::unique_ptr<Compressor> host);
};
std::span<const DeviceRow> device_table();

// As make_compressor: what works on queues of a device instead. An error where there is no row as well.
core::Result<std::unique_ptr<Compressor>> make_device_compressor(const core::CompressorSpec& spec);

}  // namespace gradtune::compress::cuda
