// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/module_model.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "hooks/kept_buffers.h"
#include "hooks/optim_stepper.h"
#include "tests/engine/exec/counting_new.h"

namespace gradtune {
namespace {

using testing::HasSubstr;

struct NestedImpl : torch::nn::Module {
  NestedImpl() {
    inner = register_module("inner", torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3)));
    tied = register_module("tied", inner);
    frozen = register_parameter("frozen", torch::zeros({2}), /*requires_grad=*/false);
  }
  torch::nn::Sequential inner{nullptr}, tied{nullptr};
  torch::Tensor frozen;
};
TORCH_MODULE(Nested);

std::string change_of(Model& model) {
  const core::Status status = model.check_unchanged();
  return status ? "none" : status.error().message;
}

TEST(Model, ListsEachTensorOnce) {
  Nested module;
  const ModuleModel model(*module, true);
  std::vector<std::string> names;
  for (const NamedTensor& each : model.parameters()) names.push_back(each.name);
  EXPECT_THAT(names,
              testing::ElementsAre("frozen", "inner.0.weight", "inner.0.bias", "inner.1.weight", "inner.1.bias"));
  EXPECT_EQ(model.buffers().size(), 3U);
  EXPECT_TRUE(ModuleModel(*module, false).buffers().empty());
}

TEST(Model, WhatChangesIsNamed) {
  const auto message = [](const std::function<void(NestedImpl&)>& change) {
    Nested module;
    ModuleModel model(*module, true);
    EXPECT_EQ(change_of(model), "none");
    change(*module);
    return change_of(model);
  };
  EXPECT_THAT(message([](NestedImpl& m) { m.register_parameter("more", torch::zeros({1}), false); }),
              HasSubstr("parameter more was added"));
  EXPECT_THAT(message([](NestedImpl& m) { m.register_buffer("more", torch::zeros({1})); }),
              HasSubstr("buffer more was added"));
  EXPECT_THAT(message([](NestedImpl& m) { m.inner->push_back(torch::nn::Linear(2, 2)); }),
              HasSubstr("parameter inner.2.weight was added"));
  EXPECT_THAT(message([](NestedImpl& m) { m.frozen.set_requires_grad(true); }), HasSubstr("parameter frozen was"));
  EXPECT_THAT(message([](NestedImpl& m) {
                m.unregister_module("inner");
                m.unregister_module("tied");
              }),
              HasSubstr("parameter inner.0.weight was removed"));
  EXPECT_EQ(message([](NestedImpl& m) { m.register_module("plain", torch::nn::ReLU()); }), "none");
  EXPECT_EQ(message([](NestedImpl& m) { m.inner->named_buffers()["1.running_mean"].resize_({7}); }), "none");
}

TEST(Model, GradientsOfWhatWasFrozenSinceAreDropped) {
  Nested module;
  const ModuleModel model(*module, true);
  for (const torch::Tensor& p : module->parameters()) p.mutable_grad() = torch::ones_like(p);
  module->inner->parameters()[0].set_requires_grad(false);
  model.drop_gradients();
  for (const torch::Tensor& p : module->inner->parameters()) EXPECT_FALSE(p.grad().defined());
  EXPECT_TRUE(module->frozen.grad().defined()) << "never trained";
}

TEST(Model, TheLayoutOfBuffersIsThatOfShapesAndDtypes) {
  Nested module, twin;
  ModuleModel model(*module, true), other(*twin, true);
  const uint64_t before = model.buffer_layout();
  EXPECT_EQ(before, other.buffer_layout());
  torch::Tensor mean = module->inner->named_buffers()["1.running_mean"];
  mean.fill_(3);
  EXPECT_EQ(model.buffer_layout(), before);
  mean.resize_({3, 1});
  EXPECT_NE(model.buffer_layout(), before);
  mean.resize_({3});
  EXPECT_EQ(model.buffer_layout(), before);
}

TEST(Model, LooksAllocateNothing) {
  Nested module;
  ModuleModel model(*module, true);
  std::vector<torch::Tensor> parameters;
  for (const NamedTensor& each : model.parameters()) parameters.push_back(each.tensor);
  torch::optim::SGD sgd(parameters, 0.1);
  OptimStepper stepper({&sgd});
  model.buffer_layout();
  const int64_t before = exec::allocations_of_thread();
  for (int step = 0; step < 10; ++step) {
    EXPECT_TRUE(model.check_unchanged().ok());
    EXPECT_TRUE(stepper.check_unchanged().ok());
    model.buffer_layout();
  }
  EXPECT_EQ(exec::allocations_of_thread(), before);
}

TEST(KeptBuffers, SeesEveryChange) {
  const torch::NoGradGuard no_grad;
  const std::vector<NamedTensor> buffers{{"mean", torch::tensor({1.0F, NAN, 3.0F})},
                                         {"empty", torch::zeros({0, 2})},
                                         {"count", torch::tensor(7)},
                                         {"table", torch::rand({4, 4}).t()}};
  KeptBuffers kept;
  EXPECT_TRUE(kept.may_differ(buffers));
  kept.keep(buffers);
  EXPECT_FALSE(kept.may_differ(buffers));
  EXPECT_TRUE(kept.may_differ({buffers.begin(), buffers.end() - 1}));
  EXPECT_TRUE(kept.may_differ({}));
  for (const NamedTensor& buffer : buffers) {
    if (buffer.tensor.numel() == 0) continue;
    const torch::Tensor before = buffer.tensor.clone();
    buffer.tensor.variable_data().add_(1);  // no version counter sees this
    EXPECT_TRUE(kept.may_differ(buffers)) << buffer.name;
    buffer.tensor.copy_(before);
    EXPECT_FALSE(kept.may_differ(buffers)) << buffer.name;
  }
  buffers[3].tensor.transpose_(0, 1);  // the same bytes
  EXPECT_TRUE(kept.may_differ(buffers));
  kept.keep({});
  EXPECT_FALSE(kept.may_differ({}));
}

TEST(KeptBuffers, WhatItCanNotCompareMayDiffer) {
  KeptBuffers kept;
  for (const torch::Tensor& tensor : {torch::zeros({4}).expand({4, 4}), torch::zeros({4, 4}).select(1, 0),
                                      torch::zeros({2}, torch::kComplexFloat).conj()}) {
    kept.keep({{"odd", tensor}});
    EXPECT_TRUE(kept.may_differ({{"odd", tensor}}));
  }
}

}  // namespace
}  // namespace gradtune
