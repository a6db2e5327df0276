// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The steps that compiling inserts between those of a program (engine/exec/program.h), as far as they take time:
// their numbers, and the copies that a job on a device has. A test compares these with compiled programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/option.h"
#include "policies/cost/op_sizes.h"

namespace gradtune::policies {

// Used instead of a step's number.
constexpr int32_t kScaleStep = -1;                       // before a sum of gradients
constexpr int32_t kCastStep = -2;                        // a 16-bit gradient to fp32, or back
constexpr int32_t kToHostStep = -3, kToDeviceStep = -4;  // copies between a device's memory and the host's
constexpr int32_t kLeastStep = kToDeviceStep;

// The parts of a job that are on a device: its gradients, and then possibly the communicators and the kernels of
// compressors.
struct OnDevice {
  bool gradients = false, collectives = false, kernels = false;

  // True if the host does work that an option places there: a device without kernels leaves all of it to the host.
  bool is_by_host(core::Place place) const { return place == core::Place::host || (gradients && !kernels); }
  bool operator==(const OnDevice&) const = default;
};

struct Copy {
  size_t before = 0;  // copied before that step; the number of steps: after the last one
  bool to_host = false;
  int64_t bytes = 0;

  bool operator==(const Copy&) const = default;
};

// In execution order. `sizes`: of the option's steps for such a bucket (op_sizes). Two kinds of copies are left out:
// residuals to which a second encode adds in another space, and padding of a bucket to equal shards on the host of a
// device without kernels.
std::vector<Copy> copies(const core::Option& option, int64_t numel, core::DType dtype, const std::vector<OpSize>& sizes,
                         const OnDevice& on_device);

}  // namespace gradtune::policies
