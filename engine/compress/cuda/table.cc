// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/cuda/table.h"

#include <algorithm>
#include <string>

namespace gradtune::compress::cuda {

// Each source file of a family defines its own.
using Made = std::unique_ptr<Compressor>;
Made none(Made host);         // dense.cu
Made bf16(Made host);         // dense.cu
Made fp16(Made host);         // dense.cu
Made packed(Made host);       // packed.cu
Made bf16packed(Made host);   // packed.cu
Made topk(Made host);         // topk.cu: of threshk and dgc as well
Made block_codes(Made host);  // block_codes.cu
Made int_packed(Made host);   // int_packed.cu
Made signs(Made host);        // signs.cu
Made powersgd(Made host);     // powersgd.cu
Made randk(Made host);        // randk.cu
Made thc(Made host);          // thc.cu
Made rows(Made host);         // sparse.cu
Made coo(Made host);          // sparse.cu
Made blocks(Made host);       // sparse.cu

std::span<const DeviceRow> device_table() {
  static constexpr DeviceRow kRows[] = {{"none", none},
                                        {"packed", packed},
                                        {"bf16", bf16},
                                        {"bf16packed", bf16packed},
                                        {"fp16", fp16},
                                        {"topk", topk},
                                        {"threshk", topk},
                                        {"dgc", topk},
                                        {"efsignsgd", signs},
                                        {"onebit", signs},
                                        {"signsgd", signs},
                                        {"signum", signs},
                                        {"int8", block_codes},
                                        {"int6", block_codes},
                                        {"int5", block_codes},
                                        {"int4", block_codes},
                                        {"int3", block_codes},
                                        {"int2", block_codes},
                                        {"int8packed", int_packed},
                                        {"int4packed", int_packed},
                                        {"int3packed", int_packed},
                                        {"int2packed", int_packed},
                                        {"int8s", block_codes},
                                        {"fp8e4m3", block_codes},
                                        {"fp8e5m2", block_codes},
                                        {"natural", block_codes},
                                        {"qsgd", block_codes},
                                        {"terngrad", block_codes},
                                        {"randk", randk},
                                        {"powersgd", powersgd},
                                        {"thc", thc},
                                        {"rows", rows},
                                        {"coo", coo},
                                        {"blocks", blocks}};
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
