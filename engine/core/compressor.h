// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What planners and interpreter know of a compressor, as plain data: its name with parameters (CompressorSpec) and its
// traits. The compressors themselves, and the one table of them, are in engine/compress.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/result.h"

namespace gradtune::core {

// How far gradtune may change what is trained (design, "User's view"). Ordered: a larger value allows more.
enum class Fidelity : uint8_t { exact, half, lossy };

std::string_view to_string(Fidelity fidelity);
Result<Fidelity> parse_fidelity(std::string_view text);  // "exact" | "half" | "lossy"

// A compressor with its parameter as users write it: "bf16", "topk:0.01", "efsignsgd:64".
struct CompressorSpec {
  std::string name;
  double parameter = 0;  // meaning and range are in the traits; equals the default where the user gave none

  bool operator==(const CompressorSpec&) const = default;
};

std::string to_string(const CompressorSpec& spec);  // "topk:0.01"; the parameter is left out where it is 0

struct CompressorTraits {
  std::string_view name;
  std::string_view summary;  // one line for users

  Fidelity fidelity;     // the least fidelity that admits it
  bool in_default_list;  // used at that fidelity without being named (decided by our accuracy table)
  bool summable;         // payloads may be added by a collective; otherwise they are gathered and decoded
  bool error_feedback;   // the encoding error is kept in the residual and sent later

  // The one parameter, if any: `parameter_name` is empty for a compressor without. A step > 0 says that it is a
  // multiple of that.
  std::string_view parameter_name;
  double parameter_default = 0, parameter_min = 0, parameter_max = 0, parameter_step = 0;

  // Bytes of the payload of n >= 0 elements: fixed by spec and n, never by the data.
  int64_t (*payload_bytes)(const CompressorSpec& spec, int64_t n);
};

// Those of that compressor among the known ones; null where it is not known.
const CompressorTraits* traits_of(const CompressorSpec& spec, const std::vector<CompressorTraits>& known);

// An error that says what is allowed where the traits do not admit the parameter.
Status check_parameter(const CompressorTraits& traits, double parameter);

}  // namespace gradtune::core
