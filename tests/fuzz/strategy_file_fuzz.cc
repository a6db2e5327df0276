// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Strategy files are untrusted: any bytes are refused with a named error, or read into a strategy that survives
// writing and reading again. The function has libFuzzer's name; the replay test runs it over the corpus and
// mutations of it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "engine/compress/compressor.h"
#include "tuner/files/strategy_file.h"

namespace {

using namespace gradtune;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "strategy_file_fuzz: %s\n", what);
  std::abort();
}

// The model of the corpus.
core::GradientTable model() {
  return {{{.name = "fc.bias", .shape = {10}, .numel = 10},
           {.name = "fc.weight", .shape = {10, 300}, .numel = 3000},
           {.name = "conv", .shape = {7}, .numel = 7, .dtype = core::DType::bf16}}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto known = compress::known_traits();
  static const core::GradientTable table = model();
  const auto file = tuner::parse_strategy({reinterpret_cast<const char*>(data), size}, known);
  if (!file) {
    require(!file.error().message.empty(), "an error without a message");
    return 0;
  }
  const auto again = tuner::parse_strategy(tuner::to_json(file.value()), known);
  require(again.ok() && again.value() == file.value(), "written and read again it is another");
  const auto fitted = tuner::fit(file.value(), table, file.value().world_size, core::Fidelity::lossy, known);
  if (fitted) {
    require(core::validate(file.value().strategy, fitted.value()).ok(), "fits and is not valid");
    require(fitted.value().fingerprint() == table.fingerprint(), "fits another model");
  }
  return 0;
}
