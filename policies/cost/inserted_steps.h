// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What compiling inserts between the steps of a program (engine/exec/program.h), as far as it takes time: how steps are
// numbered there, and which copies a job on a device has. A test holds these against compiled programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/option.h"
#include "policies/cost/op_sizes.h"

namespace gradtune::policies {

// In the place of a step's number.
constexpr int32_t kScaleStep = -1;                       // before a sum of gradients
constexpr int32_t kCastStep = -2;                        // of a 16-bit gradient to fp32, or back
constexpr int32_t kToHostStep = -3, kToDeviceStep = -4;  // copies between a device's memory and the host's
constexpr int32_t kLeastStep = kToDeviceStep;

// What of a job is a device's: its gradients; then maybe the communicators, and kernels of compressors.
struct OnDevice {
  bool gradients = false, collectives = false, kernels = false;

  // Whether the host does what options place there: without kernels a device leaves all to it.
  bool is_by_host(core::Place place) const { return place == core::Place::host || (gradients && !kernels); }
  bool operator==(const OnDevice&) const = default;
};

struct Copy {
  size_t before = 0;  // that step; the number of steps: behind the last
  bool to_host = false;
  int64_t bytes = 0;

  bool operator==(const Copy&) const = default;
};

// In their order. `sizes`: of the option's steps for such a bucket (op_sizes). Left out are those of residuals that a
// second encode adds to in another space, and those that pad a bucket to equal shards on the host of a device without
// kernels.
std::vector<Copy> copies(const core::Option& option, int64_t numel, core::DType dtype, const std::vector<OpSize>& sizes,
                         const OnDevice& on_device);

}  // namespace gradtune::policies
