// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Gradients are brought to the place where the strategy reads them, wherever a program or autograd left them.
#include "hooks/gradients.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>

#include "hooks/module_model.h"

namespace gradtune {
namespace {

using Kind = exec::Arrived::Kind;

// A job with one parameter.
struct Job {
  explicit Job(const torch::Tensor& values) {
    module.register_parameter("weight", values);
    model.emplace(module, /*with_buffers=*/true);
    gradients.emplace(*model, &module, warnings);
  }
  torch::Tensor& gradient() { return module.named_parameters()["weight"].mutable_grad(); }
  const torch::Tensor& slot() const { return gradients->slot(0); }

  torch::nn::Module module;
  Console front;
  Warnings warnings{front, 0};
  std::optional<ModuleModel> model;
  std::optional<Gradients> gradients;
};

TEST(Gradients, WhatLiesAsTheSlotIsTakenFromWhereItIs) {
  for (const int64_t rows : {1, 3}) {
    Job job(torch::zeros({rows, 4}));
    // For one row the stride of rows has no meaning.
    const torch::Tensor own = torch::rand({rows, 4}).as_strided({rows, 4}, {rows == 1 ? 1 : 4, 1});
    job.gradient() = own;
    const Gradients::Brought brought = job.gradients->bring(0);
    EXPECT_EQ(brought.arrived.kind, Kind::dense);
    EXPECT_EQ(static_cast<const void*>(brought.arrived.values), own.const_data_ptr());
    EXPECT_EQ(job.gradient().const_data_ptr(), job.slot().const_data_ptr());
  }
}

TEST(Gradients, WhatLiesOtherwiseIsLaidAsTheSlot) {
  Job job(torch::zeros({3, 4}));
  const torch::Tensor own = torch::rand({4, 3}).t();
  job.gradient() = own;
  EXPECT_EQ(job.gradients->bring(0).arrived.kind, Kind::in_place);
  EXPECT_TRUE(torch::equal(job.slot(), own));
}

// LibTorch changes the sign of such numbers when they are read, and stores no zeros.
TEST(Gradients, NumbersThatAreNotInMemoryAreMade) {
  const torch::Tensor own = torch::rand({3, 4});
  for (const auto& [made, expected] :
       {std::pair(torch::_neg_view(own), -own), std::pair(torch::_efficientzerotensor({3, 4}), torch::zeros({3, 4}))}) {
    Job job(torch::zeros({3, 4}));
    job.gradients->slot(0).fill_(7);
    job.gradient() = made;
    EXPECT_EQ(job.gradients->bring(0).arrived.kind, Kind::in_place);
    EXPECT_EQ(std::memcmp(job.slot().const_data_ptr(), expected.contiguous().const_data_ptr(), expected.nbytes()), 0);
  }
}

TEST(Gradients, AnotherViewOfTheSlotIsNotTheSlot) {
  Job job(torch::zeros({4, 4}));
  const torch::Tensor own = torch::rand({4, 4});
  for (const bool is_negated : {false, true}) {
    job.slot().copy_(own);
    job.gradient() = is_negated ? torch::_neg_view(job.slot()) : job.slot().t();
    EXPECT_EQ(job.gradients->bring(0).arrived.kind, Kind::in_place);
    EXPECT_TRUE(torch::equal(job.slot(), is_negated ? -own : own.t()));
    EXPECT_FALSE(job.gradient().is_neg());
  }
}

TEST(Gradients, TheTableSaysHowTheyLie) {
  const auto order_of = [](const torch::Tensor& values) {
    return Job(values).gradients->table().tensors[0].memory_order;
  };
  using Order = std::vector<int32_t>;
  EXPECT_EQ(order_of(torch::zeros({3, 4})), Order());
  EXPECT_EQ(order_of(torch::zeros({4, 3}).t()), (Order{1, 0}));
  EXPECT_EQ(order_of(torch::zeros({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast)), (Order{0, 2, 3, 1}));
  EXPECT_EQ(order_of(torch::zeros({4, 1, 3}).permute({2, 1, 0})), (Order{2, 0, 1}));
  EXPECT_EQ(order_of(torch::zeros({4, 1}).t()), Order());
  EXPECT_EQ(order_of(torch::zeros({3, 8}).narrow(1, 0, 4)), Order()) << "gradients have no gaps";
  EXPECT_EQ(order_of(torch::zeros({})), Order());
}

}  // namespace
}  // namespace gradtune
