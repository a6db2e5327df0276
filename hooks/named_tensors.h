// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What the models of any front have in common: named tensors that can be sent to other ranks, how two lists of them
// differ, and a hash of their shapes. Leaves open where the lists come from.
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

// Throws, with its name, for a tensor that can not be sent: one that is not dense, has no memory, or whose elements
// share memory. `what`: "parameter" or "buffer".
void check_sendable(std::string_view what, const std::vector<NamedTensor>& tensors);

// Where the parameters are that require a gradient: the CPU if there are none. Throws for one that is elsewhere than
// the first.
c10::Device device_of(const std::vector<NamedTensor>& parameters);

// What is there under several names stands under the first; undefined ones are left out.
std::vector<NamedTensor> each_once(std::vector<NamedTensor> tensors);

// What all ranks have alike, and what stays each rank's own, as it has one of the names `ignored` or is inside of a
// module with such a name. Each once, as each_once(); what has several names is ignored by any of them.
struct Shared {
  std::vector<NamedTensor> shared, own;
};
Shared without_ignored(std::vector<NamedTensor> tensors, const std::vector<std::string>& ignored);

// Throws for one of the names `ignored` that none of them has, nor a module around one.
void check_ignored(const std::vector<std::string>& ignored, const std::vector<NamedTensor>& parameters,
                   const std::vector<NamedTensor>& buffers);

// An error that names the first tensor that only one of the lists has. `advice`: what to do, "wrap again".
core::Status check_same(std::string_view what, const std::vector<NamedTensor>& then,
                        const std::vector<NamedTensor>& now, std::string_view advice);

// An error that names a parameter that requires a gradient, and did not when `trainable` was made of the same list.
core::Status check_frozen(const std::vector<NamedTensor>& parameters, const std::vector<bool>& trainable,
                          std::string_view advice);

// Of those that were trainable, also of what was frozen since.
void drop_gradients(const std::vector<NamedTensor>& parameters, const std::vector<bool>& trainable);

// Hash of the shapes and dtypes of tensors. Where nothing changed since the last time it allocates nothing.
class LayoutHash {
 public:
  uint64_t of(const std::vector<NamedTensor>& tensors);

 private:
  std::vector<int64_t> sizes_;  // of all, with their dtypes, one behind the other
  uint64_t hash_ = 0;
};

}  // namespace gradtune
