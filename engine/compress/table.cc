// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "engine/compress/compressor.h"
#include "engine/compress/rows.h"

namespace gradtune::compress {

std::span<const TableRow> table() {
  static const std::array rows{none(),     packed(), bf16(),      bf16packed(), fp16(),    topk(),
                               threshk(),  dgc(),    efsignsgd(), onebit(),     signsgd(), signum(),
                               int8(),     int8s(),  fp8e4m3(),   fp8e5m2(),    natural(), qsgd(),
                               terngrad(), randk(),  powersgd(),  thc()};
  return rows;
}

std::vector<core::CompressorTraits> known_traits() {
  std::vector<core::CompressorTraits> known;
  for (const TableRow& row : table()) known.push_back(row.traits);
  return known;
}

core::Result<std::unique_ptr<Compressor>> make_compressor(const core::CompressorSpec& spec) {
  std::string names;
  for (const TableRow& row : table()) {
    if (row.traits.name == spec.name) {
      const core::Status status = core::check_parameter(row.traits, spec.parameter);
      if (!status.ok()) return status.error();
      return row.make(spec, row.traits);
    }
    names += (names.empty() ? "" : ", ") + std::string(row.traits.name);
  }
  return core::Error{core::Error::Code::invalid, "compressor \"" + spec.name + "\" is unknown; known are " + names};
}

}  // namespace gradtune::compress
