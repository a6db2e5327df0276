// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/compressor.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "engine/core/unknown_name.h"

namespace gradtune::core {
namespace {

// The shortest form that reads back to the same double.
std::string print(double value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

}  // namespace

std::string_view to_string(Fidelity fidelity) {
  switch (fidelity) {
    case Fidelity::exact: return "exact";
    case Fidelity::half: return "half";
    case Fidelity::lossy: return "lossy";
  }
  return "unknown";
}

Result<Fidelity> parse_fidelity(std::string_view text) {
  for (Fidelity fidelity : {Fidelity::exact, Fidelity::half, Fidelity::lossy}) {
    if (text == to_string(fidelity)) return fidelity;
  }
  constexpr std::string_view kNames[] = {"exact", "half", "lossy"};
  return Error{Error::Code::invalid, "fidelity \"" + std::string(text) + "\" is unknown" + did_you_mean(text, kNames) +
                                         "; known are exact, half and lossy"};
}

std::string to_string(const CompressorSpec& spec) {
  if (spec.parameter == 0) return spec.name;
  return spec.name + ":" + print(spec.parameter);
}

std::vector<Matrix> matrices_within(std::span<const Matrix> matrices, int64_t begin, int64_t length) {
  std::vector<Matrix> within;
  for (const Matrix& matrix : matrices) {
    const int64_t skipped = std::max<int64_t>(begin - matrix.begin, 0);
    const int64_t first = (skipped + matrix.columns - 1) / matrix.columns;
    const int64_t last = (std::min(begin + length, matrix.end()) - matrix.begin) / matrix.columns;
    if (begin + length <= matrix.begin || first >= last) continue;
    within.push_back({matrix.begin + first * matrix.columns - begin, last - first, matrix.columns});
  }
  return within;
}

std::vector<CompressorSpec> default_list(Fidelity fidelity, OptimizerFamily family, TraitsTable known) {
  std::vector<CompressorSpec> list;
  for (const CompressorTraits& traits : known) {
    const Listed of_family = family == OptimizerFamily::sgd ? Listed::for_sgd : Listed::for_adaptive;
    const bool is_listed = traits.listed == Listed::always || traits.listed == of_family;
    if (is_listed && traits.fidelity <= fidelity) list.push_back({std::string(traits.name), traits.parameter_default});
  }
  return list;
}

int most_ranks(const CompressorTraits& traits, const CompressorSpec& spec) {
  return traits.most_ranks == nullptr ? std::numeric_limits<int>::max() : traits.most_ranks(spec);
}

int64_t usual_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent) {
  if (traits.sparse_bytes != nullptr) {
    return traits.sparse_bytes(spec, extent.numel, extent.content.row, extent.content.of_one);
  }
  return static_cast<int64_t>(traits.usual_use * static_cast<double>(payload_bytes(traits, spec, extent)));
}

int64_t payload_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent) {
  int64_t sum = 0;
  for (int round = 0; round < traits.rounds; ++round) sum += traits.payload_bytes(spec, extent, round);
  return sum;
}

double host_bytes(const CompressorTraits& traits, const CompressorSpec& spec, const Extent& extent,
                  HostOperation operation, int payloads) {
  const HostWork& host = traits.host;
  const double array = 4.0 * static_cast<double>(extent.numel);
  const auto sent = static_cast<double>(payload_bytes(traits, spec, extent));
  switch (operation) {
    case HostOperation::encode: return array * (host.reads + 2 * host.state_arrays) + sent;
    case HostOperation::encode_feedback:
      return array * (host.feedback_reads + host.feedback_writes + 2 * host.state_arrays) + sent;
    case HostOperation::decode: break;
  }
  return array + payloads * static_cast<double>(traits.payload_bytes(spec, extent, traits.rounds - 1));
}

const CompressorTraits* traits_of(const CompressorSpec& spec, TraitsTable known) {
  const auto row = std::find_if(known.begin(), known.end(),
                                [&](const CompressorTraits& traits) { return traits.name == spec.name; });
  return row == known.end() ? nullptr : &*row;
}

Status check_parameter(const CompressorTraits& traits, double parameter) {
  const bool in_range = parameter >= traits.parameter_min && parameter <= traits.parameter_max;
  if (in_range && (traits.parameter_step == 0 || std::fmod(parameter, traits.parameter_step) == 0)) return {};
  const std::string name(traits.name);
  if (traits.parameter_name.empty()) {
    return Error{Error::Code::invalid, "compressor " + name + " takes no parameter"};
  }
  std::string allowed = "from " + print(traits.parameter_min) + " to " + print(traits.parameter_max);
  if (traits.parameter_step > 0) allowed += ", a multiple of " + print(traits.parameter_step);
  return Error{Error::Code::invalid, "compressor " + name + ": " + std::string(traits.parameter_name) + " is " +
                                         print(parameter) + "; allowed is a number " + allowed};
}

}  // namespace gradtune::core
