// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "engine/compress/compressor.h"
#include "engine/core/unknown_name.h"

namespace gradtune::compress {

#define GRADTUNE_COMPRESSOR(name, device) CompressorRow name();
#include "engine/compress/table.inc"
#undef GRADTUNE_COMPRESSOR

std::span<const CompressorRow> compressor_table() {
#define GRADTUNE_COMPRESSOR(name, device) name(),
  static const std::array table{
#include "engine/compress/table.inc"
  };
#undef GRADTUNE_COMPRESSOR
  return table;
}

core::TraitsTable known_traits() {
  static const auto known = [] {
    std::vector<core::CompressorTraits> all;
    for (const CompressorRow& row : compressor_table()) all.push_back(row.traits);
    return all;
  }();
  return known;
}

core::Result<std::unique_ptr<Compressor>> make_compressor(const core::CompressorSpec& spec) {
  std::vector<std::string_view> names;
  for (const CompressorRow& row : compressor_table()) {
    if (row.traits.name == spec.name) {
      const core::Status status = core::check_parameter(row.traits, spec.parameter);
      if (!status.ok()) return status.error();
      return row.make(spec, row.traits);
    }
    names.push_back(row.traits.name);
  }
  return core::Error{core::Error::Code::invalid, core::unknown_name("compressor", spec.name, names)};
}

}  // namespace gradtune::compress
