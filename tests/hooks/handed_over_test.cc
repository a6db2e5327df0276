// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests sessions whose gradients another component brings, pass by pass.
#include <gmock/gmock.h>

#include <vector>

#include "hooks/session.h"
#include "hooks/trained_by.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;

// A model, its session that gives sums or averages, and the gradients of the current pass.
class HandedOver {
 public:
  HandedOver(const c10::intrusive_ptr<c10d::ProcessGroup>& group, bool sums)
      : group_(group),
        session_(
            [this, sums](const Settings& settings) {
              Trained trained = trained_by({&sgd_}, *model_)(settings);
              trained.arrival = Arrival::handed_over;
              trained.sums = sums;
              return trained;
            },
            group, quiet({.fidelity = "exact", .tuning_budget = 60})) {
    session_.on_averaged([this](const auto&) {
      for (size_t p = 0; p < brought_.size(); ++p) {
        if (brought_[p].defined()) session_.give_back(parameters()[p], brought_[p]);
      }
    });
  }

  // A number of this rank for each element of a parameter in a pass, a small multiple of a power of two, whose sums
  // are exact.
  static torch::Tensor gradient(const torch::Tensor& parameter, int rank, int pass) {
    const auto seed = static_cast<float>(7 * rank + 3 * pass + 1);
    return torch::arange(parameter.numel()).remainder(13).mul(seed / 16).reshape(parameter.sizes());
  }
  void hand_over(size_t parameter, int rank, int pass) {
    brought_.resize(parameters().size());
    brought_[parameter] = gradient(parameters()[parameter], rank, pass);
    session_.hand_over(parameters()[parameter], brought_[parameter]);
  }
  void end_step() {
    session_.begin_update();
    session_.end_update();
    brought_.clear();
  }
  std::vector<torch::Tensor> parameters() const { return model_->parameters(); }
  const std::vector<torch::Tensor>& brought() const { return brought_; }
  Session& session() { return session_; }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  torch::nn::Sequential model_{torch::nn::Linear(20, 30), torch::nn::Linear(30, 5)};
  torch::optim::SGD sgd_{model_->parameters(), 0.1};
  std::vector<torch::Tensor> brought_;
  Session session_;
};

void expect_results(const HandedOver& job, int ranks, int pass, double divisor) {
  for (size_t p = 0; p < job.brought().size(); ++p) {
    torch::Tensor expected = torch::zeros_like(job.brought()[p]);
    for (int r = 0; r < ranks; ++r) expected += HandedOver::gradient(job.parameters()[p], r, pass);
    ASSERT_TRUE(torch::equal(job.brought()[p], expected / divisor)) << "parameter " << p << ", pass " << pass;
  }
}

TEST(HandedOver, PassesWithoutAutogradGiveAveragesOrSums) {
  for (const int size : {1, 2, 4}) {
    run_ranks(
        size, +[](const Rank& rank) {
          const auto group = make_group();
          for (const bool sums : {false, true}) {
            HandedOver job(group, sums);
            for (int pass = 0; pass < 90; ++pass) {  // tuned meanwhile
              job.session().begin_pass();
              for (size_t p = job.parameters().size(); p-- > 0;) job.hand_over(p, rank.rank, pass);
              ASSERT_TRUE(job.session().end_pass());
              expect_results(job, rank.size, pass, sums ? 1 : rank.size);
              job.end_step();
            }
          }
        });
  }
}

TEST(HandedOver, APassOfAutogradEndsWithIt) {
  run_ranks(2, [](const Rank& rank) {
    HandedOver job(make_group(), /*sums=*/true);
    for (int pass = 0; pass < 5; ++pass) {
      torch::Tensor x = torch::ones({2}, torch::requires_grad());
      x.register_hook([&](const torch::Tensor&) {
        job.session().enter_autograd_pass();
        for (size_t p = 0; p < job.parameters().size(); ++p) job.hand_over(p, rank.rank, pass);
      });
      x.sum().backward();
      expect_results(job, rank.size, pass, 1);
      job.end_step();
    }
  });
}

// If only some ranks have a gradient, the result would be applied by these alone.
TEST(HandedOver, RanksThatSumDifferentGradientsAreNamed) {
  run_ranks(2, [](const Rank& rank) {
    HandedOver job(make_group(), /*sums=*/true);
    const auto pass = [&](int number, bool whole) {
      job.session().begin_pass();
      for (size_t p = 0; p < (whole ? 4 : 3); ++p) job.hand_over(p, rank.rank, number);
      static_cast<void>(job.session().end_pass());
      job.end_step();
    };
    for (int number = 0; number < 3; ++number) pass(number, true);
    pass(3, false);  // a gradient that no rank has
    EXPECT_THAT(message_of([&] { pass(4, rank.rank == 0); }),
                HasSubstr("gradients of a backward pass differ between ranks (from rank 0: rank 1): gradient of "
                          "1.bias: it is missing on rank 1 and there on rank 0"));
  });
}

}  // namespace
}  // namespace gradtune::test
