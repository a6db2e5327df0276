// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests which operators the watch sees, among those that LibTorch's modules call, and when.
#include "hooks/operator_watch.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace gradtune {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// The first use of each number, in order; the watch ends when `last` were seen.
class Seen final : public OperatorWatch::Listener {
 public:
  void before_operator() noexcept override { ++operators; }
  void before_use(int32_t number) noexcept override {
    if (on_use) on_use(number);
    if (std::ranges::find(numbers, number) != numbers.end()) return;
    numbers.push_back(number);
    if (numbers.size() == last) watch.disarm();
  }

  // Numbers are positions in the list.
  void look_at(const std::vector<torch::Tensor>& tensors) {
    std::vector<OperatorWatch::Watched> all;
    for (const torch::Tensor& tensor : tensors) {
      all.push_back({OperatorWatch::memory_of(tensor), static_cast<int32_t>(all.size())});
    }
    watch.watch(all);
    watch.arm();
  }

  int operators = 0;
  size_t last = SIZE_MAX;
  std::vector<int32_t> numbers;
  std::function<void(int32_t)> on_use;
  OperatorWatch watch{*this};
};

struct Kind {
  const char* name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<void()> forward;
};

template <typename Module, typename... Inputs>
Kind kind(const char* name, Module module, Inputs... inputs) {
  return {name, module.ptr(), [module, inputs...]() mutable { module->forward(inputs...); }};
}

std::vector<Kind> kinds() {
  using namespace torch::nn;
  const torch::Tensor x = torch::randn({4, 6}), image = torch::randn({2, 6, 8, 8}),
                      words = torch::randint(0, 6, {3, 4});
  const torch::Tensor sequence = torch::randn({5, 2, 6});
  return {kind("linear", Linear(6, 3), x),
          kind("bilinear", Bilinear(6, 6, 2), x, x),
          kind("convolution", Conv2d(Conv2dOptions(6, 2, 3)), image),
          kind("transposed convolution", ConvTranspose2d(ConvTranspose2dOptions(6, 2, 3)), image),
          kind("embedding", Embedding(6, 3), words),
          kind("bag", EmbeddingBag(6, 3), words),
          kind("batch norm", BatchNorm2d(6), image),
          kind("layer norm", LayerNorm(LayerNormOptions({6})), x),
          kind("group norm", GroupNorm(2, 6), image),
          kind("prelu", PReLU(), x),
          kind("lstm", LSTM(LSTMOptions(6, 4).num_layers(2).bidirectional(true)), sequence),
          kind("gru", GRU(6, 4), sequence),
          kind("attention", MultiheadAttention(6, 2), sequence, sequence, sequence),
          kind("transformer", TransformerEncoderLayer(TransformerEncoderLayerOptions(6, 2)), sequence)};
}

TEST(OperatorWatch, SeesTheParametersOfModules) {
  for (const Kind& kind : kinds()) {
    for (const bool gradients : {true, false}) {
      const torch::AutoGradMode mode(gradients);
      Seen seen;
      seen.look_at(kind.module->parameters());
      kind.forward();
      std::ranges::sort(seen.numbers);
      EXPECT_EQ(seen.numbers.size(), kind.module->parameters().size()) << kind.name;
    }
  }
}

TEST(OperatorWatch, DoesNotSeeWhatTheListenerCalls) {
  for (const Kind& kind : kinds()) {
    const std::vector<torch::Tensor> parameters = kind.module->parameters();
    Seen seen;
    int changed = 0;
    std::vector<torch::Tensor> before;
    for (const torch::Tensor& p : parameters) before.push_back(p.detach().clone());
    seen.on_use = [&](int32_t number) {
      const torch::NoGradGuard no_grad;
      const auto n = static_cast<size_t>(number);
      if (!torch::equal(parameters[n], before[n])) return;
      torch::Tensor(parameters[n]).add_(1);
      ++changed;
    };
    seen.look_at(parameters);
    kind.forward();
    EXPECT_EQ(changed, static_cast<int>(parameters.size())) << kind.name << ": what the listener calls is not seen";
  }
}

TEST(OperatorWatch, TellsBeforeTheKernelReads) {
  const torch::nn::Linear linear(torch::nn::LinearOptions(6, 3).bias(false));
  Seen seen;
  seen.on_use = [&](int32_t) {
    const torch::NoGradGuard no_grad;
    linear->weight.zero_();
  };
  seen.look_at({linear->weight});
  EXPECT_TRUE(torch::equal(torch::nn::Linear(linear)->forward(torch::randn({2, 6})), torch::zeros({2, 3})));
}

TEST(OperatorWatch, SeesViewsThatWereMadeBefore) {
  const torch::Tensor weight = torch::randn({4, 6}).requires_grad_();
  const torch::Tensor view = weight.t(), other = torch::randn({3});
  Seen seen;
  seen.look_at({other, weight});
  torch::randn({2, 6}).matmul(view);
  EXPECT_THAT(seen.numbers, ElementsAre(1));
  torch::cat({torch::ones({2}), other});
  EXPECT_THAT(seen.numbers, ElementsAre(1, 0));
}

TEST(OperatorWatch, TellsAllThatShareMemory) {
  const torch::Tensor whole = torch::zeros({10});
  Seen seen;
  seen.look_at({whole.narrow(0, 0, 4), whole.narrow(0, 5, 3)});
  whole.narrow(0, 9, 1).fill_(1);
  std::ranges::sort(seen.numbers);
  EXPECT_THAT(seen.numbers, ElementsAre(0, 1));
}

TEST(OperatorWatch, EndsFromInsideAndCostsNothingThen) {
  const torch::Tensor weight = torch::ones({3});
  Seen seen;
  seen.last = 1;
  seen.look_at({weight});
  weight + 1;
  const int operators = seen.operators;
  EXPECT_FALSE(seen.watch.is_armed());
  weight + 1;
  EXPECT_EQ(seen.operators, operators);
  seen.watch.arm();
  weight + 1;
  EXPECT_GT(seen.operators, operators);
}

TEST(OperatorWatch, SeesTheThreadThatArmedIt) {
  const torch::Tensor weight = torch::ones({3});
  Seen seen;
  seen.look_at({weight});
  EXPECT_TRUE(seen.watch.is_armed_here());
  std::thread([&] {
    EXPECT_FALSE(seen.watch.is_armed_here());
    weight + 1;
  }).join();
  EXPECT_THAT(seen.numbers, IsEmpty());
  std::thread([&] {
    seen.watch.arm();
    weight + 1;
  }).join();
  EXPECT_THAT(seen.numbers, ElementsAre(0));
  seen.numbers.clear();
  weight + 1;
  EXPECT_THAT(seen.numbers, IsEmpty());
}

TEST(OperatorWatch, SeveralWatchOneThread) {
  const torch::Tensor weight = torch::ones({3});
  Seen first;
  first.look_at({weight});
  {
    Seen second;
    second.look_at({weight});
    first.on_use = [&](int32_t) { first.watch.disarm(); };
    weight + 1;
    EXPECT_THAT(second.numbers, ElementsAre(0));
  }
  EXPECT_THAT(first.numbers, ElementsAre(0));
  weight + 1;
}

}  // namespace
}  // namespace gradtune
