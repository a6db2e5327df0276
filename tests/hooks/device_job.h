// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A small training job on any device, for tests that compare its bits with those of another device.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/exec/kernels.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {

using Parameters = std::vector<torch::Tensor>;  // on the CPU

// The models of these jobs.
// - mlp: three layers
// - transformer: a layer of attention and its wide layers, with norms before, over five places
// - images: two layers for images of Fashion-MNIST, as in the example's mlp-small
// - nested: two layers, the second one in a function of the host that runs backward inside its own backward
// - table: rows of a table with sparse gradients, and a layer
enum class DeviceModelKind : uint8_t { mlp, transformer, images, nested, table };

// Made in place: C++ modules can only be moved between devices that LibTorch knows by name.
class DeviceModel final : public torch::nn::Module {
 public:
  DeviceModel(DeviceModelKind kind, c10::Device device, torch::ScalarType type);

  torch::Tensor loss(const Data& data) const;
  Parameters on_cpu() const;

 private:
  void add(const torch::nn::Module& on_cpu, const std::string& prefix, c10::Device device, torch::ScalarType type);
  torch::Tensor mlp(torch::Tensor x) const;
  torch::Tensor transformer(torch::Tensor x) const;
  torch::Tensor nested(const torch::Tensor& x) const;
  torch::Tensor table(const torch::Tensor& x) const;

  const DeviceModelKind kind_;
  std::vector<torch::Tensor> all_;
};

struct DeviceJob {
  DeviceModelKind model = DeviceModelKind::mlp;
  c10::Device device = torch::kCPU;
  std::function<std::unique_ptr<exec::Kernels>(c10::Device device)> make_kernels = {};  // null: gradtune's own
  std::string option = {};  // of all buckets, as text; empty: gradtune chooses
  std::string fidelity = "lossy";
  int steps = 5;
  torch::ScalarType type = torch::kFloat;
  int64_t tuning_budget = 0;
  std::optional<double> timeout_s = {};  // none: that of quiet()
  std::optional<std::string> collectives = {};
  std::string journal = {};
  std::function<Data(int step)> data = {};  // of this rank; null: make_data
  int bad_step = -1;                        // rank 0 has a gradient that is not finite in this step
  int left_step = -1;                       // rank 0 leaves its backward pass by an exception in this step, and
                                            // continues
  std::function<void()> averaged = {};      // called each time that gradients are averages
  int reloaded_step = -1;                   // a checkpoint is saved and loaded before this step
  int changed_step = -1;                    // a hook changes a parameter within this step's backward pass
};

// The parameters after training. The result of `planted` lives while it trains.
Parameters train(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const DeviceJob& job,
                 const std::function<std::shared_ptr<void>()>& planted = {});

bool same_bits(const Parameters& a, const Parameters& b);

// All families of compressors, summable and not, with state, with rounds; two ranks of one node have no levels.
inline constexpr std::array kDeviceOptions = {
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

}  // namespace gradtune::test
