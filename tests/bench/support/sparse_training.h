// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains the models of the benchmark "sparse" on any device, for tests that compare it with the CPU.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/exec/kernels.h"

namespace gradtune::test {

struct SparseDevice {
  c10::Device device;
  std::function<std::unique_ptr<exec::Kernels>(c10::Device device)> make_kernels = {};  // null: gradtune's own
};

// Two ranks train the model, "lstm" or "deepfm", on the CPU and on each of the devices, which are made on a rank. Each
// loss differs by at most that share, and tables are sent as rows.
void expect_losses_of_the_cpu(const std::string& model, const std::function<std::vector<SparseDevice>()>& devices,
                              double share);

}  // namespace gradtune::test
