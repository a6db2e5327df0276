// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/op.h"

#include <array>

namespace gradtune::exec {

const Coding* coding_of(const Op& op) {
  if (const auto* encode = op.as<Encode>()) return encode;
  return op.as<Decode>();
}

std::string_view name_of(const Op& op) {
  constexpr std::array<std::string_view, std::variant_size_v<decltype(Op::work)>> kNames = {
      "load", "scale", "encode", "pack", "collective", "decode", "store", "copy", "collect"};
  return kNames[op.work.index()];
}

}  // namespace gradtune::exec
