// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/shared_state.h"

#include <torch/utils.h>

#include <algorithm>

#include "hooks/gradients.h"

namespace gradtune {
namespace {

constexpr char kBetween = '\t', kEnd = '\n', kIs = '=';

// Names are the user's: what separates them here must not stand in them.
std::string plain(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == kBetween || c == kEnd; }, ' ');
  return text;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string on(std::string_view what, int rank) { return std::string(what) + " on rank " + std::to_string(rank); }

std::string type_of(const torch::Tensor& tensor) { return std::string(torch::toString(tensor.scalar_type())); }

std::string strides_of(const torch::Tensor& tensor) {
  std::vector<int64_t> strides = gradient_strides(tensor);
  for (size_t d = 0; d < strides.size(); ++d) {
    if (tensor.size(static_cast<int64_t>(d)) == 1) strides[d] = 0;
  }
  return c10::str(c10::IntArrayRef(strides));
}

}  // namespace

std::string to_text(const std::vector<SharedThing>& things) {
  std::string text;
  for (const SharedThing& thing : things) {
    text += plain(thing.name);
    for (const auto& [property, value] : thing.properties) text += kBetween + plain(property) + kIs + plain(value);
    text += kEnd;
  }
  return text;
}

std::string first_difference(std::string_view one, int rank_of_one, std::string_view other, int rank_of_other) {
  const auto lines = split(one, kEnd), other_lines = split(other, kEnd);
  for (size_t l = 0; l < std::max(lines.size(), other_lines.size()); ++l) {
    const auto fields = split(l < lines.size() ? lines[l] : std::string_view(), kBetween);
    const auto other_fields = split(l < other_lines.size() ? other_lines[l] : std::string_view(), kBetween);
    if (fields == other_fields) continue;
    const std::string_view name = fields.empty() ? "nothing more" : fields[0];
    const std::string_view other_name = other_fields.empty() ? "nothing more" : other_fields[0];
    if (name != other_name) return on(name, rank_of_one) + " stands where " + on(other_name, rank_of_other) + " does";
    for (size_t f = 1; f < std::max(fields.size(), other_fields.size()); ++f) {
      const std::string_view field = f < fields.size() ? fields[f] : std::string_view();
      const std::string_view other_field = f < other_fields.size() ? other_fields[f] : std::string_view();
      if (field == other_field) continue;
      const auto value = [](std::string_view of) { return of.substr(std::min(of.find(kIs) + 1, of.size())); };
      const std::string_view named = field.empty() ? other_field : field;
      const std::string_view property = named.substr(0, named.find(kIs));
      //X(field.empty() ? other_field : field).substr(0, (field.empty() ? other_field : field).find(kIs));
      return std::string(name) + ": " + std::string(property) + " is " + on(value(field), rank_of_one) + " and " +
             on(value(other_field), rank_of_other);
    }
  }
  return "";
}

std::vector<SharedThing> describe(const Settings& settings) {
  std::string codecs;
  for (const core::CompressorSpec& codec : settings.codecs)
    codecs += (codecs.empty() ? "" : ",") + core::to_string(codec);
  const auto option = [](const char* name, const std::string& value) {
    return SharedThing{std::string("option ") + name, {{"it", value}}};
  };
  return {option("fidelity", std::string(core::to_string(settings.fidelity))), option("compressors", codecs),
          option("seed", std::to_string(settings.seed)),  // of random numbers that ranks share
          // What is in force at first.
          option("strategy", settings.strategy.empty() ? "not set" : "a file"),
          option("tuning_budget", settings.tuning_budget == 0 ? "0" : "above 0"),
          option("lossy_after", std::to_string(settings.lossy_after)),
          option("broadcast_buffers", settings.broadcast_buffers ? "true" : "false")};
}

std::vector<SharedThing> describe(const Model& model, const Optimizers& optimizers) {
  const Optimizers::Places places = optimizers.places();
  const auto place_of = [&](const torch::Tensor& parameter) -> std::string {
    const auto found = places.find(parameter.unsafeGetTensorImpl());
    if (found == places.end()) return "none";
    return std::to_string(found->second.first) + ", group " + std::to_string(found->second.second);
  };
  std::vector<SharedThing> things;
  for (const auto& [name, tensor] : model.parameters()) {
    things.push_back({"parameter " + name,
                      {{"shape", c10::str(tensor.sizes())},
                       {"dtype", type_of(tensor)},
                       {"memory format (strides)", strides_of(tensor)},
                       {"requires_grad", tensor.requires_grad() ? "true" : "false"},
                       {"optimizer", place_of(tensor)}}});
  }
  return things;
}

std::vector<SharedThing> describe_buffers(const Model& model) {
  std::vector<SharedThing> things;
  for (const auto& [name, tensor] : model.buffers()) {
    things.push_back({"buffer " + name, {{"shape", c10::str(tensor.sizes())}, {"dtype", type_of(tensor)}}});
  }
  return things;
}

}  // namespace gradtune
