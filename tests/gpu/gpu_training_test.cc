// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests training on a real GPU, which all ranks share, over Gloo. Kernels on the device give the bits of the host's
// compressors, and a tuned job at exact gives those of an uncompressed one.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <torch/cuda.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/support/sparse_training.h"
#include "tests/hooks/device_job.h"
#include "tests/hooks/nccl_jobs.h"

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

// The compressors of the host, and the device's own.
std::vector<SparseDevice> both_ways() {
  const c10::Device device(torch::kCUDA, 0);
  return {{device, [](c10::Device) { return nullptr; }}, {device}};
}

// A GPU adds in another order, and may round the products of an LSTM to TF32.
TEST_F(GpuTraining, AnLstmWithSparseTablesTrainsAsOnTheCpu) { expect_losses_of_the_cpu("lstm", both_ways, 1e-2); }
TEST_F(GpuTraining, DeepFmTrainsAsOnTheCpu) { expect_losses_of_the_cpu("deepfm", both_ways, 1e-3); }

// Ranks that share the GPU pass for ranks of several nodes (on_gpu.py).
DeviceJob on_node_of_its_own(const Rank& rank, DeviceJob job) {
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank.rank)).c_str(), 1);
  job.device = c10::Device(torch::kCUDA, 0);
  return job;
}

const OverNccl kBySockets{.place = on_node_of_its_own};

class GpuNccl : public GpuTraining {};

TEST_F(GpuNccl, OneRankTrains) { expect_values_of_gloo(kBySockets, 1); }
TEST_F(GpuNccl, TwoRanksHaveTheValuesOfGloo) { expect_values_of_gloo(kBySockets, 2); }
TEST_F(GpuNccl, ThreeRanksHaveTheValuesOfGloo) { expect_values_of_gloo(kBySockets, 3); }
TEST_F(GpuNccl, FourRanksHaveTheValuesOfGloo) { expect_values_of_gloo(kBySockets, 4); }
TEST_F(GpuNccl, ATunedJobAtExactHasTheBitsOfOneThatIsNot) { expect_bits_while_tuning(kBySockets); }
TEST_F(GpuNccl, ADeadRankIsNamed) { expect_a_dead_rank_to_be_named(kBySockets); }
TEST_F(GpuNccl, AFrozenRankIsNamed) { expect_a_frozen_rank_to_be_named(kBySockets); }

}  // namespace
}  // namespace gradtune::test
