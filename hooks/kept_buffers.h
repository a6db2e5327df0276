// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A copy of a model's buffers, to see whether they changed. Version counters would not do, because a change by way of
// `.data` does not show in them.
#pragma once

#include <cstddef>
#include <vector>

#include "hooks/model.h"

namespace gradtune {

class KeptBuffers {
 public:
  void keep(const std::vector<NamedTensor>& buffers);
  // False if all bytes are those that were kept, with the same sizes and strides. True for buffers on a device, which
  // would have to be waited for, and for tensors that share memory or have gaps.
  bool may_differ(const std::vector<NamedTensor>& buffers) const;

 private:
  bool can_compare_ = false;
  std::vector<std::byte> bytes_;
};

}  // namespace gradtune
