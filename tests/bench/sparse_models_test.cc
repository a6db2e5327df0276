// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The models of the benchmark "sparse" train on the device without hardware (tests/hooks/fake_device.h) as on the CPU,
// with and without kernels of the device.
#include <gtest/gtest.h>

#include "tests/bench/support/sparse_training.h"
#include "tests/hooks/fake_device.h"
#include "tests/hooks/fake_kernels.h"

namespace gradtune::test {
namespace {

std::vector<SparseDevice> fake_devices() {
  const c10::Device device = fake_device();
  return {{device}, {device, [](c10::Device) { return fake_kernels(); }}};
}

TEST(SparseModels, TheLstmTrainsOnADeviceAsOnTheCpu) { expect_losses_of_the_cpu("lstm", fake_devices, 1e-5); }
TEST(SparseModels, DeepFmTrainsOnADeviceAsOnTheCpu) { expect_losses_of_the_cpu("deepfm", fake_devices, 1e-5); }

}  // namespace
}  // namespace gradtune::test
