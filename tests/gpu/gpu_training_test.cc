// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests training on a real GPU, which all ranks share, over Gloo. Kernels on the device give the bits of the host's
// compressors, and a tuned job at exact gives those of an uncompressed one.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <torch/cuda.h>

#include "tests/hooks/device_job.h"

namespace gradtune::test {
namespace {

class GpuTraining : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    ASSERT_GT(torch::cuda::device_count(), 0U) << "this test needs a GPU";
  }

  static DeviceJob on_gpu(DeviceJob job) {
    job.device = c10::Device(torch::kCUDA, 0);
    return job;
  }
  // On the host: gradients are copied to it.
  static DeviceJob on_host(DeviceJob job) {
    job = on_gpu(job);
    job.make_kernels = [](c10::Device) { return nullptr; };
    return job;
  }

  static void expect_bits_of_the_host(int size, DeviceJob job) {
    run_ranks(size, [&](const Rank& rank) {
      const auto group = make_group();
      for (const char* option : kDeviceOptions) {
        job.option = option;
        EXPECT_TRUE(same_bits(train(rank, group, on_host(job)), train(rank, group, on_gpu(job)))) << option;
      }
    });
  }
};

TEST_F(GpuTraining, EveryKindOfProgramHasTheBitsOfTheHost) { expect_bits_of_the_host(2, {}); }
TEST_F(GpuTraining, GradientsOfBfloat16HaveTheBitsOfTheHost) { expect_bits_of_the_host(2, {.type = torch::kBFloat16}); }
TEST_F(GpuTraining, GradientsOfFloat16HaveTheBitsOfTheHost) { expect_bits_of_the_host(2, {.type = torch::kHalf}); }
TEST_F(GpuTraining, StepsThatAreNotFiniteLeaveResidualsAsTheyWere) { expect_bits_of_the_host(2, {.bad_step = 2}); }

TEST_F(GpuTraining, ATunedJobAtExactHasTheBitsOfOneThatIsNot) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    const DeviceJob job{.fidelity = "exact", .steps = 60};
    DeviceJob tuned = job;
    tuned.tuning_budget = 40;
    EXPECT_TRUE(same_bits(train(rank, group, on_gpu(job)), train(rank, group, on_gpu(tuned))));
  });
}

// With one rank, since NCCL allows only one rank per GPU.
TEST_F(GpuTraining, OverNcclOneRankTrains) {
  run_ranks(1, [](const Rank& rank) {
    const auto group = make_group();
    for (const char* option : kDeviceOptions) {
      DeviceJob job{.option = option};
      const Parameters over_gloo = train(rank, group, on_gpu(job));
      job.collectives = "nccl";
      EXPECT_TRUE(same_bits(over_gloo, train(rank, group, on_gpu(job)))) << option;
    }
  });
}

}  // namespace
}  // namespace gradtune::test
