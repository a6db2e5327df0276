// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/policies/jobs.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/core/result.h"

namespace gradtune::policies::testing {

using core::CompressorSpec;
using core::Fidelity;

namespace {

std::vector<core::CompressorTraits> make_traits() {
  const auto none = [](const CompressorSpec&, const core::Extent& of, int) { return 4 * of.numel; };
  const auto half = [](const CompressorSpec&, const core::Extent& of, int) { return 2 * of.numel; };
  const auto topk = [](const CompressorSpec& spec, const core::Extent& of, int) {
    return 16 + 8 * static_cast<int64_t>(std::ceil(spec.parameter * static_cast<double>(of.numel)));
  };
  const auto sign = [](const CompressorSpec&, const core::Extent& of, int) {
    return 16 + of.numel / 8 + of.numel / 64 * 4 + 8;
  };
  const auto randk = [](const CompressorSpec& spec, const core::Extent& of, int) {
    return 4 * static_cast<int64_t>(std::ceil(spec.parameter * static_cast<double>(of.numel)));
  };
  const auto row = [](std::string_view name, Fidelity fidelity, bool summable, auto payload_bytes) {
    return core::CompressorTraits{.name = name,
                                  .summary = name,
                                  .fidelity = fidelity,
                                  .listed = core::Listed::always,
                                  .summable = summable,
                                  .error_feedback = !summable,
                                  .parameter_name = "",
                                  .payload_bytes = payload_bytes};
  };
  std::vector<core::CompressorTraits> traits = {
      row("none", Fidelity::exact, true, none),       row("fp16", Fidelity::half, true, half),
      row("bf16", Fidelity::half, true, half),        row("topk", Fidelity::lossy, false, topk),
      row("efsignsgd", Fidelity::lossy, false, sign), row("randk", Fidelity::lossy, true, randk),
  };
  core::CompressorTraits& density = traits[3];
  density.parameter_name = "density";
  density.parameter_default = 0.01, density.parameter_min = 1e-5, density.parameter_max = 0.5;
  core::CompressorTraits& block = traits[4];
  block.parameter_name = "block";
  block.parameter_default = 64, block.parameter_min = 16, block.parameter_max = 1 << 20;
  core::CompressorTraits& share = traits[5];
  share.error_feedback = true;
  share.parameter_name = "density";
  share.parameter_default = 0.1, share.parameter_min = 1e-6, share.parameter_max = 1;
  return traits;
}

}  // namespace

core::TraitsTable known_traits() {
  static const std::vector<core::CompressorTraits> traits = make_traits();
  return traits;
}

std::vector<CompressorSpec> default_codecs(Fidelity fidelity) {
  std::vector<CompressorSpec> codecs = {{"none"}};
  if (fidelity >= Fidelity::half) codecs.push_back({"bf16"});
  if (fidelity >= Fidelity::lossy) codecs.push_back({"topk", 0.01});
  return codecs;
}

core::TensorInfo tensor(std::string name, int64_t numel, double ready_us, core::DType dtype) {
  return {.name = std::move(name), .shape = {numel}, .numel = numel, .dtype = dtype, .ready_us = ready_us};
}

core::GradientTable make_table(const std::vector<core::TensorInfo>& tensors) { return {tensors}; }

core::GradientTable reference_table() {
  return make_table({
      tensor("fc3.bias", 10, 0),
      tensor("fc3.weight", 10 * 1024, 40),
      tensor("fc2.bias", 1024, 300),
      tensor("fc2.weight", 1024 * 2048, 2'300),
      tensor("fc1.bias", 2048, 3'000),
      tensor("fc1.weight", 2048 * 3136, 9'000),
      tensor("conv2.bias", 64, 12'000),
      tensor("conv2.weight", 64 * 32 * 9, 31'000),
      tensor("conv1.bias", 32, 40'000),
      tensor("conv1.weight", 32 * 9, 47'000),
  });
}

Knowledge knowledge_of(core::GradientTable table, int world_size, Fidelity fidelity) {
  return {.table = std::move(table),
          .ranks = {.size = world_size},
          .fidelity = fidelity,
          .codecs = default_codecs(fidelity),
          .traits = known_traits(),
          .machine = {.collectives_at_once = 4}};
}

core::GradientTable read_trace(std::string_view name) {
  std::ifstream file(std::string(GRADTUNE_TRACES "/") + std::string(name) + ".json");
  core::check(file.good(), "no published trace of that name");
  core::GradientTable table;
  const nlohmann::json trace = nlohmann::json::parse(file);
  for (const auto& entry : trace.at("tensors")) {
    table.tensors.push_back(tensor(entry.at("name"), entry.at("numel"), entry.at("ready_us")));
  }
  return table;
}

}  // namespace gradtune::policies::testing
