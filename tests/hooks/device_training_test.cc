// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Real models on a device that is none (fake_device.h), on real ranks over Gloo: the parameters of training on the CPU,
// bit for bit, with the same strategy; and every kind of missing wait between streams makes them others.
#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"
#include "hooks/session.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tests/hooks/fake_device.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/hooks/trained_by.h"
#include "tuner/files/file_io.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;
using Parameters = std::vector<torch::Tensor>;

// Made where it is: C++ modules can only be moved between devices that LibTorch knows by name.
struct Mlp final : torch::nn::Module {
  Mlp(c10::Device device, torch::ScalarType type) {
    auto on_cpu = make_mlp(1);
    for (const auto& parameter : on_cpu->named_parameters()) {
      std::string name = parameter.key();
      std::ranges::replace(name, '.', '_');
      all.push_back(register_parameter(name, parameter.value().detach().to(type).to(device)));
    }
  }

  torch::Tensor loss(const Data& data) const {
    const c10::Device device = all[0].device();
    torch::Tensor x = data.inputs.to(device);
    for (size_t layer = 0; layer < all.size(); layer += 2) {
      x = torch::linear(layer == 0 ? x : torch::relu(x), all[layer], all[layer + 1]);
    }
    return torch::nn::functional::cross_entropy(x, data.targets.to(device));
  }
  Parameters on_cpu() const {
    Parameters copies;
    for (const torch::Tensor& parameter : all) copies.push_back(parameter.detach().cpu().clone());
    return copies;
  }

  Parameters all;
};

enum class Where : uint8_t { cpu, copied, kernels };  // copied: the device only copies, the host compresses

struct Job {
  Where where = Where::cpu;
  std::string option = {};  // of all buckets, as text; empty: gradtune's choice
  std::string fidelity = "lossy";
  int steps = 5;
  torch::ScalarType type = torch::kFloat;
  int64_t tuning_budget = 0;
  std::optional<std::string> collectives = {};
  int bad_step = -1;  // in which rank 0 has a gradient that is not finite
};

// A strategy file of that option for all of the model's buckets, by rank 0.
std::string strategy_of(const Job& job, const Mlp& model, int size) {
  core::GradientTable table;
  for (const auto& parameter : model.named_parameters()) {
    table.tensors.push_back({.name = parameter.key(),
                             .shape = parameter.value().sizes().vec(),
                             .numel = parameter.value().numel(),
                             .dtype = job.type == torch::kFloat ? core::DType::f32 : core::DType::bf16});
  }
  std::ranges::reverse(table.tensors);
  const core::Strategy strategy = exec::make_strategy(table, job.option, 9'000, 2);
  return tuner::to_json(tuner::strategy_file(table, size, core::Fidelity::lossy, "of the test", strategy));
}

// Faults that are gone before the session ends, which waits for all that is under way then.
struct Planted {
  explicit Planted(const FakeDeviceFaults& faults) { set_faults(faults); }
  ~Planted() { set_faults({}); }
};

// The parameters after training, on the CPU. Faults are there while it trains.
Parameters train(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Job& job,
                 const FakeDeviceFaults& faults = {}) {
  const c10::Device device = job.where == Where::cpu ? c10::Device(torch::kCPU) : fake_device();
  Mlp model(device, job.type);
  Options options = quiet({.fidelity = job.fidelity, .tuning_budget = job.tuning_budget, .host_threads = 1});
  const std::string file =
      (std::filesystem::temp_directory_path() / ("gradtune_device_training_" + std::to_string(getppid()) + ".json"))
          .string();
  options.collectives = job.collectives;
  if (!job.option.empty()) {
    if (rank.rank == 0) tuner::write_file_atomically(file, strategy_of(job, model, rank.size)).value();
    options.strategy = file;
  }
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const Session::MakeTrained make = [&, inner = trained_by(sgd, model)](const Settings& settings) {
    Trained trained = inner(settings);
    if (job.where == Where::kernels) trained.make_kernels = [](c10::DeviceType) { return fake_kernels(); };
    return trained;
  };
  Session session(make, group, options);
  const Planted planted(faults);
  for (int step = 0; step < job.steps; ++step) {
    Data data = make_data(rank.rank, step, 8, job.type);
    if (step == job.bad_step && rank.rank == 0) data.inputs[0][0] = std::numeric_limits<float>::infinity();
    session.zero_grad();
    model.loss(data).backward();
    if (step != job.bad_step) session.step(nullptr);
  }
  return model.on_cpu();
}

bool same_bits(const Parameters& a, const Parameters& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const torch::Tensor here = a[i].contiguous(), there = b[i].contiguous();
    if (std::memcmp(here.const_data_ptr(), there.const_data_ptr(), here.nbytes()) != 0) return false;
  }
  return a.size() == b.size();
}

// --- the device ------------------------------------------------------------------------------------------------------

TEST(FakeDevice, ComputesAsTheCpu) {
  const auto trained = [](c10::Device device) {
    Mlp model(device, torch::kFloat);
    torch::optim::Adam adam(model.parameters(), 0.01);
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      model.loss(make_data(0, step)).backward();
      adam.step();
    }
    return model.on_cpu();
  };
  EXPECT_TRUE(same_bits(trained(torch::kCPU), trained(fake_device())));
}

// --- training --------------------------------------------------------------------------------------------------------

TEST(DeviceTraining, ATunedJobAtExactHasTheBitsOfTheCpu) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    const Parameters on_cpu = train(rank, group, {.fidelity = "exact", .steps = 40});
    for (const Where where : {Where::copied, Where::kernels}) {
      const Job job{.where = where, .fidelity = "exact", .steps = 40, .tuning_budget = 30};
      EXPECT_TRUE(same_bits(on_cpu, train(rank, group, job)));
    }
  });
}

// Of every family of compressors, summable and not, with state, with rounds; levels are not for two ranks of one node.
constexpr std::array kOptions = {
    "all_reduce",
    "bf16: encode@device all_reduce decode@device",
    "packed: encode@device all_gather decode@device",
    "int8: encode@device all_to_all decode@device encode@device all_gather decode@device",
    "int8: encode@device all_gather decode@host",
    "topk:0.05: encode@device all_gather decode@device",
    "topk:0.05: encode@host all_gather decode@device",
    "randk:0.1: encode@device all_reduce decode@device",
    "powersgd:2: encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1",
    "efsignsgd: encode@device all_gather decode@device"};

void expect_bits_of_the_cpu(int size, torch::ScalarType type) {
  run_ranks(size, [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : kOptions) {
      const Parameters on_cpu = train(rank, group, {.option = option, .type = type});
      for (const Where where : {Where::copied, Where::kernels}) {
        EXPECT_TRUE(same_bits(on_cpu, train(rank, group, {.where = where, .option = option, .type = type}))) << option;
      }
    }
  });
}

TEST(DeviceTraining, EveryKindOfProgramHasTheBitsOfTheCpu) { expect_bits_of_the_cpu(2, torch::kFloat); }
TEST(DeviceTraining, FourRanksHaveTheBitsOfTheCpu) { expect_bits_of_the_cpu(4, torch::kFloat); }
TEST(DeviceTraining, GradientsOf16BitsHaveTheBitsOfTheCpu) { expect_bits_of_the_cpu(2, torch::kBFloat16); }

// As loss scaling does: the step is left out by all ranks, and residuals are as before it.
TEST(DeviceTraining, StepsThatAreNotFiniteLeaveResidualsAsTheyWere) {
  run_ranks(2, [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : {"all_reduce", "topk:0.05: encode@device all_gather decode@device"}) {
      const Parameters on_cpu = train(rank, group, {.option = option, .bad_step = 2});
      for (const Where where : {Where::copied, Where::kernels}) {
        EXPECT_TRUE(same_bits(on_cpu, train(rank, group, {.where = where, .option = option, .bad_step = 2}))) << option;
      }
    }
  });
}

// --- over NCCL -------------------------------------------------------------------------------------------------------

TEST(DeviceTraining, OverNcclItHasTheBitsOfTheCpu) {
  const auto body = [](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    for (const char* option : kOptions) {
      const Parameters on_cpu = train(rank, group, {.option = option});
      for (const Where where : {Where::copied, Where::kernels}) {
        const Job job{.where = where, .option = option, .collectives = "nccl"};
        EXPECT_TRUE(same_bits(on_cpu, train(rank, group, job))) << option;
      }
    }
    const Job bad{.option = kOptions[5], .bad_step = 2};
    Job over_nccl = bad;
    over_nccl.where = Where::kernels;
    over_nccl.collectives = "nccl";
    EXPECT_TRUE(same_bits(train(rank, group, bad), train(rank, group, over_nccl)));
  };
  run_ranks(2, body, {.environment = {{"GRADTUNE_NCCL_LIBRARY", FAKE_NCCL}}});
}

TEST(DeviceTraining, WithoutTheLibraryOfNcclAllRanksSaySo) {
  const auto body = [](const Rank& rank) {
    const auto group = make_group();
    EXPECT_THAT(message_of([&] { train(rank, group, {.where = Where::copied, .collectives = "nccl"}); }),
                HasSubstr("collectives of NCCL need the library libnccl_of_nobody.so, which can not be loaded"));
  };
  run_ranks(2, body, {.environment = {{"GRADTUNE_NCCL_LIBRARY", "libnccl_of_nobody.so"}}});
}

TEST(DeviceTraining, NcclIsRefusedForParametersOnTheCpu) {
  run_ranks(1, [](const Rank& rank) {
    const auto group = make_group();
    EXPECT_THAT(
        message_of([&] { train(rank, group, {.collectives = "nccl"}); }),
        HasSubstr("option collectives is \"nccl\", which is for parameters on a CUDA device, and these are on the "
                  "CPU; allowed is gloo"));
  });
}

// --- missing waits ---------------------------------------------------------------------------------------------------

struct Edge {
  const char *from, *to, *slow;
};

// The stream that is not waited for is slow, so that what is there is what was there before.
void expect_seen(const Edge& edge, Where where, const char* option) {
  run_ranks(2, [&](const Rank& rank) {
    fake_device();
    const auto group = make_group();
    const Job job{.where = where, .option = option, .steps = 4};
    const Parameters right = train(rank, group, job);
    FakeDeviceFaults faults;
    faults.delay_us = [&](const std::string& stream) { return stream == edge.slow ? 3'000 : 0; };
    EXPECT_TRUE(same_bits(right, train(rank, group, job, faults))) << "work that is slow changes nothing";
    faults.skips_wait = [&](const std::string& from, const std::string& to) {
      return from == edge.from && to == edge.to;
    };
    bool is_right = true;  // what is decoded too early may be no payload
    const std::string error = message_of([&] { is_right = same_bits(right, train(rank, group, job, faults)); });
    EXPECT_TRUE(!is_right || error != "no error") << edge.from << " -> " << edge.to;
  });
}

constexpr const char* kTopk = "topk:0.05: encode@device all_gather decode@device";

TEST(MissingWait, OfAnEncodeForItsGradientIsSeen) {
  expect_seen({"current", "codec", "current"}, Where::kernels, kTopk);
}
TEST(MissingWait, OfACopyForAnEncodeIsSeen) { expect_seen({"codec", "to_host", "codec"}, Where::kernels, kTopk); }
TEST(MissingWait, OfACopyForItsGradientIsSeen) { expect_seen({"current", "to_host", "current"}, Where::copied, kTopk); }
TEST(MissingWait, OfSendingForACopyIsSeen) { expect_seen({"to_host", "host", "to_host"}, Where::copied, kTopk); }
TEST(MissingWait, OfADecodeForWhatWasReceivedIsSeen) {
  expect_seen({"to_device", "codec", "to_device"}, Where::kernels, kTopk);
}
TEST(MissingWait, OfTheOptimizerForADecodeIsSeen) { expect_seen({"codec", "host", "codec"}, Where::kernels, kTopk); }
TEST(MissingWait, OfTheOptimizerForACopyIsSeen) {
  expect_seen({"to_device", "host", "to_device"}, Where::copied, kTopk);
}

// --- what is refused -------------------------------------------------------------------------------------------------

TEST(DeviceTraining, ParametersOnSeveralDevicesAreRefusedByName) {
  run_ranks(1, [](const Rank&) {
    const auto group = make_group();
    struct Mixed final : torch::nn::Module {
      Mixed() {
        register_parameter("here", torch::ones({2}));
        register_parameter("there", torch::ones({2}).to(fake_device()));
      }
    } model;
    torch::optim::SGD sgd(model.parameters(), 0.1);
    EXPECT_THAT(message_of([&] { wrap(sgd, model, group, quiet()); }),
                HasSubstr("parameter there is on fake:0, parameter here on cpu; all that require "
                          "gradients have to be on one device of each rank"));
  });
}

}  // namespace
}  // namespace gradtune::test
