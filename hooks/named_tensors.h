// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Functions that the models of all front ends share: a check for named tensors that can be sent to other ranks, the
// difference of two lists, and a hash of their shapes. The caller provides the lists.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/result.h"

namespace gradtune {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

// Throws, with its name, for a tensor that cannot be sent: one that is not dense, has no memory, or whose elements
// share memory. `what`: "parameter" or "buffer".
void check_sendable(std::string_view what, const std::vector<NamedTensor>& tensors);

// The device of the parameters that require a gradient; the CPU if there are none. Throws if they are on several
// devices.
c10::Device device_of(const std::vector<NamedTensor>& parameters);

// Lists a tensor with several names under the first; undefined tensors are left out.
std::vector<NamedTensor> each_once(std::vector<NamedTensor> tensors);

// Splits tensors into those that are equal on all ranks and those that each rank keeps for itself. A tensor is in
// the second list if `ignored` has one of its names, or the name of a module around it. Each tensor is listed once,
// as in each_once().
struct Shared {
  std::vector<NamedTensor> shared, own;
};
Shared without_ignored(std::vector<NamedTensor> tensors, const std::vector<std::string>& ignored);

// Throws for a name in `ignored` that no tensor has, and no module around one.
void check_ignored(const std::vector<std::string>& ignored, const std::vector<NamedTensor>& parameters,
                   const std::vector<NamedTensor>& buffers);

// An error that names the first tensor that only one of the lists has. `advice`: the action to take, such as "wrap
// again".
core::Status check_same(std::string_view what, const std::vector<NamedTensor>& then,
                        const std::vector<NamedTensor>& now, std::string_view advice);

// An error that names a parameter that requires a gradient now, and did not when `trainable` was made from the same
// list.
core::Status check_frozen(const std::vector<NamedTensor>& parameters, const std::vector<bool>& trainable,
                          std::string_view advice);

// Drops the gradients of the parameters that were trainable, also of those that were frozen since.
void drop_gradients(const std::vector<NamedTensor>& parameters, const std::vector<bool>& trainable);

// Hash of the shapes and dtypes of tensors. It allocates nothing if nothing changed since the last call.
class LayoutHash {
 public:
  uint64_t of(const std::vector<NamedTensor>& tensors);

 private:
  std::vector<int64_t> sizes_;  // of all tensors with their dtypes, one after another
  uint64_t hash_ = 0;
};

}  // namespace gradtune
