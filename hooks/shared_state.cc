// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/shared_state.h"

#include <c10/core/DeviceType.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "hooks/gradients.h"
#include "hooks/option_table.h"

namespace gradtune {
namespace {

std::string type_of(const torch::Tensor& tensor) { return std::string(torch::toString(tensor.scalar_type())); }

std::string strides_of(const torch::Tensor& tensor) {
  std::vector<int64_t> strides = gradient_strides(tensor);
  for (size_t d = 0; d < strides.size(); ++d) {
    if (tensor.size(static_cast<int64_t>(d)) == 1) strides[d] = 0;
  }
  return c10::str(c10::IntArrayRef(strides));
}

std::string device_of_gradient(const torch::Tensor& parameter) {
  if (!parameter.requires_grad()) return "any";
  return c10::DeviceTypeName(parameter.device().type(), /*lower_case=*/true);
}

}  // namespace

std::vector<SharedThing> describe(const Settings& settings) {
  std::vector<SharedThing> things;
  for (const OptionRow& row : option_table()) {
    if (row.agreed != nullptr) things.push_back({std::string("option ") + row.name, {{"it", row.agreed(settings)}}});
  }
  return things;
}

std::vector<SharedThing> describe(const Model& model, const Stepper& stepper) {
  std::unordered_map<const void*, std::string> groups;
  for (const Stepper::Group& group : stepper.groups()) {
    for (const torch::Tensor& parameter : group.parameters) groups[parameter.unsafeGetTensorImpl()] = group.name;
  }
  const auto group_of = [&](const torch::Tensor& parameter) -> std::string {
    const auto found = groups.find(parameter.unsafeGetTensorImpl());
    return found == groups.end() ? "none" : found->second;
  };
  std::vector<SharedThing> things;
  std::unordered_set<const void*> own;
  for (const NamedTensor& parameter : model.own_parameters()) own.insert(parameter.tensor.unsafeGetTensorImpl());
  const auto is_own = [&](const torch::Tensor& parameter) { return own.contains(parameter.unsafeGetTensorImpl()); };
  for (const Stepper::Group& group : stepper.groups()) {
    if (!own.empty() && std::ranges::all_of(group.parameters, is_own)) continue;
    things.push_back({"optimizer " + group.name, group.options});
  }
  for (const auto& [name, tensor] : model.parameters()) {
    things.push_back({"parameter " + name,
                      {{"shape", c10::str(tensor.sizes())},
                       {"dtype", type_of(tensor)},
                       {"memory format (strides)", strides_of(tensor)},
                       {"requires_grad", tensor.requires_grad() ? "true" : "false"},
                       {"device", device_of_gradient(tensor)},
                       {"optimizer", group_of(tensor)}}});
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
