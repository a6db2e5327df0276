// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "engine/compress/compressor.h"
#include "engine/core/unknown_name.h"

namespace gradtune::compress {

// Each source file of a compressor defines its own.
CompressorRow none();        // dense.cc
CompressorRow bf16();        // dense.cc
CompressorRow fp16();        // dense.cc
CompressorRow packed();      // packed.cc
CompressorRow bf16packed();  // packed.cc
CompressorRow topk();        // topk.cc
CompressorRow threshk();     // topk.cc
CompressorRow dgc();         // topk.cc
CompressorRow efsignsgd();   // signs.cc
CompressorRow onebit();      // signs.cc
CompressorRow signsgd();     // signs.cc
CompressorRow signum();      // signs.cc
CompressorRow int8();        // block_codes.cc, and so are those that follow
CompressorRow int6();
CompressorRow int5();
CompressorRow int4();
CompressorRow int3();
CompressorRow int2();
CompressorRow int8s();
CompressorRow fp8e4m3();
CompressorRow fp8e5m2();
CompressorRow natural();
CompressorRow terngrad();
CompressorRow qsgd();
CompressorRow int8packed();  // int_packed.cc
CompressorRow int4packed();  // int_packed.cc
CompressorRow int3packed();  // int_packed.cc
CompressorRow int2packed();  // int_packed.cc
CompressorRow powersgd();    // powersgd.cc
CompressorRow randk();       // randk.cc
CompressorRow thc();         // thc.cc
CompressorRow rows();        // sparse.cc, and so are those that follow
CompressorRow coo();
CompressorRow blocks();

std::span<const CompressorRow> compressor_table() {
  static const std::array table{
      none(),       packed(),     bf16(),       bf16packed(), fp16(),  topk(),    threshk(), dgc(),     efsignsgd(),
      onebit(),     signsgd(),    signum(),     int8(),       int6(),  int5(),    int4(),    int3(),    int2(),
      int8packed(), int4packed(), int3packed(), int2packed(), int8s(), fp8e4m3(), fp8e5m2(), natural(), qsgd(),
      terngrad(),   randk(),      powersgd(),   thc(),        rows(),  coo(),     blocks()};
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
