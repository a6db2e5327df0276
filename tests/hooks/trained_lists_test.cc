// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests a session over lists from another program, which runs its own updates, and has its own messages for users.
#include "hooks/trained_lists.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "engine/compress/compressor.h"
#include "hooks/session.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/file_io.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The other program's lists: it registers tensors as it likes.
struct Lists final : TrainedLists {
  std::vector<NamedTensor> parameters() override { return ++listings, parameters_; }
  std::vector<NamedTensor> buffers() override { return buffers_; }
  std::vector<Stepper::Group> groups() override { return groups_; }
  const void* identity() const override { return this; }
  std::string_view advice() const override { return "make another session"; }
  uint64_t version() override { return version_; }

  std::vector<NamedTensor> parameters_, buffers_;
  std::vector<Stepper::Group> groups_;
  uint64_t version_ = 0;
  int listings = 0;
};

std::shared_ptr<Lists> lists_of(const torch::nn::Module& module) {
  auto lists = std::make_shared<Lists>();
  for (const auto& item : module.named_parameters()) lists->parameters_.push_back({item.key(), item.value()});
  for (const auto& item : module.named_buffers()) lists->buffers_.push_back({item.key(), item.value()});
  lists->groups_.push_back(
      {.name = "0, group 0", .parameters = module.parameters(), .momentum = "", .options = {{"lr", "0.1"}}});
  return lists;
}

std::string change_of(const core::Status& status) { return status ? "none" : status.error().message; }

TEST(TrainedLists, WhatWasRegisteredIsSeenAtTheNextUpdate) {
  torch::nn::Linear linear(3, 3);
  const auto lists = lists_of(*linear);
  ListedModel model(lists, true);
  ListedStepper stepper(lists);
  for (int look = 0; look < 50; ++look) {
    EXPECT_EQ(change_of(model.check_unchanged()), "none");
    EXPECT_EQ(change_of(stepper.check_unchanged()), "none");
  }
  EXPECT_LE(lists->listings, 12) << "a list in every update would cost too much";

  lists->buffers_.push_back({"mean", torch::zeros({3})});
  ++lists->version_;
  const uint64_t layout = model.buffer_layout();
  EXPECT_EQ(model.buffers().size(), 1U) << "programs assign new buffers";
  lists->buffers_[0].tensor = torch::zeros({4});
  ++lists->version_;
  EXPECT_NE(model.buffer_layout(), layout);
  EXPECT_EQ(change_of(model.check_unchanged()), "none");

  lists->parameters_.push_back({"more", torch::zeros({3}, torch::requires_grad())});
  EXPECT_EQ(change_of(model.check_unchanged()), "none") << "nobody said so";
  ++lists->version_;
  EXPECT_THAT(change_of(model.check_unchanged()),
              AllOf(HasSubstr("parameter more was added"), HasSubstr("after that, make another session")));
  lists->groups_[0].parameters.pop_back();
  ++lists->version_;
  EXPECT_THAT(change_of(stepper.check_unchanged()), HasSubstr("groups of the optimizer were added, removed"));
}

TEST(TrainedLists, WhatNobodyToldIsSeenLater) {
  torch::nn::Linear linear(3, 3);
  const auto lists = lists_of(*linear);
  ListedModel model(lists, true);
  for (int look = 0; look < 50; ++look) EXPECT_EQ(change_of(model.check_unchanged()), "none");
  lists->parameters_.pop_back();
  std::string seen = "none";
  for (int look = 0; look < 100 && seen == "none"; ++look) seen = change_of(model.check_unchanged());
  EXPECT_THAT(seen, HasSubstr("parameter bias was removed"));
}

TEST(TrainedLists, TiedParametersStandUnderTheirFirstName) {
  torch::nn::Linear linear(3, 3);
  const auto lists = lists_of(*linear);
  lists->parameters_.push_back({"tied", linear->weight});
  EXPECT_EQ(ListedModel(lists, true).parameters().size(), 2U);
  lists->buffers_.push_back({"odd", torch::empty({3}, torch::kMeta)});
  EXPECT_THAT(message_of([&] { ListedModel(lists, true); }), HasSubstr("buffer odd is on meta"));
  EXPECT_TRUE(ListedModel(lists, false).buffers().empty());
}

MakeTrained trained_by(std::shared_ptr<Lists> lists) {
  return [lists = std::move(lists)](const Settings& settings) {
    Trained trained;
    trained.model = std::make_unique<ListedModel>(lists, settings.broadcast_buffers);
    trained.stepper = std::make_unique<ListedStepper>(lists);
    return trained;
  };
}

TEST(TrainedLists, UpdatesOfTheOtherProgramComeToTheBitsOfAWrap) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto wrapped_model = make_mlp(1), model = make_mlp(1);
    torch::optim::SGD wrapped_sgd(wrapped_model->parameters(), 0.1), sgd(model->parameters(), 0.1);
    auto wrapped = wrap(wrapped_sgd, *wrapped_model, group, quiet({.fidelity = "exact", .tuning_budget = 0}));
    Session session(trained_by(lists_of(*model)), group, quiet({.fidelity = "exact", .tuning_budget = 0}));
    for (int step = 0; step < 5; ++step) {
      wrapped.zero_grad();
      loss_of(wrapped_model, make_data(rank.rank, step)).backward();
      wrapped.step();
      sgd.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      session.begin_update();
      sgd.step();
      session.end_update();
      // As in programs that swap weights, or move a model in place.
      for (torch::Tensor& p : model->parameters()) {
        p.set_data(p.detach().clone());
        p.mutable_grad().set_data(p.grad().clone());
      }
    }
    for (size_t p = 0; p < model->parameters().size(); ++p) {
      EXPECT_TRUE(torch::equal(model->parameters()[p], wrapped_model->parameters()[p])) << p;
    }
    EXPECT_EQ(session.progress().step, 5);
    model->to(torch::kDouble);
    EXPECT_THAT(message_of([&] { session.begin_update(); }), HasSubstr("was moved, converted or replaced"));
  });
}

TEST(TrainedLists, UpdatesOfTheOtherProgramAreNeverLate) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    Session session(trained_by(lists_of(*model)), group, quiet({.tuning_budget = 0, .forward_overlap = true}));
    for (int step = 0; step < 8; ++step) {
      sgd.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      session.begin_update();
      sgd.step();
      session.end_update();
    }
    EXPECT_EQ(session.progress().late_updates, 0);
  });
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_THAT(end.output,
                HasSubstr("forward_overlap is off for this job: a step can not be done in parts: the program "
                          "runs its own optimizer"));
  }
}

TEST(TrainedLists, HyperParametersAreCompared) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    const auto lists = lists_of(*model);
    if (rank.rank == 1) lists->groups_[0].options[0].second = "0.2";
    EXPECT_THAT(message_of([&] { Session(trained_by(lists), group, quiet()); }),
                HasSubstr("optimizer 0, group 0: lr is 0.2 on rank 1 and 0.1 on rank 0"));
    torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.1).eps(rank.rank == 1 ? 1e-4 : 1e-8));
    EXPECT_THAT(message_of([&] { wrap(adam, *model, group, quiet()); }),
                HasSubstr("optimizer 0, group 0: eps is 0.0001 on rank 1 and 1e-08 on rank 0"));
  });
}

// A table with a sparse gradient, and a layer behind it; without ids the table is not used.
struct TableImpl : torch::nn::Module {
  TableImpl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 4).sparse(true)));
    layer = register_module("layer", torch::nn::Linear(4, 1));
  }
  torch::Tensor loss(const torch::Tensor& ids) {
    return layer->forward(ids.defined() ? table->forward(ids) : torch::ones({1, 4})).square().mean();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Table);

// As with Python's SparseAdam: one optimizer for the table alone, and another one for the rest.
std::shared_ptr<Lists> lists_of_table(Table& model) {
  auto lists = lists_of(*model);
  lists->groups_[0].parameters = model->layer->parameters();
  lists->groups_.push_back({.name = "1, group 0",
                            .parameters = model->table->parameters(),
                            .momentum = "",
                            .takes = Stepper::Takes::sparse});
  return lists;
}

void step_of(Session& session, Table& model, const torch::Tensor& ids) {
  for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
  model->loss(ids).backward();
  session.begin_update();
  session.end_update();
}

void write_with_residuals(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                          const std::string& file) {
  Table model;
  Session session(trained_by(lists_of_table(model)), group, quiet({.fidelity = "lossy", .tuning_budget = 0}));
  step_of(session, model, torch::tensor({1, 2, 3}));
  session.export_strategy(file);
  if (rank.rank == 0) {
    const auto known = compress::known_traits();
    auto read = tuner::parse_strategy(tuner::read_file(file, 1 << 20).value(), known).value();
    const core::Option option = core::parse_option("topk:0.05: encode@device all_gather decode@device", known).value();
    for (core::Bucket& bucket : read.strategy.buckets) bucket.option = option;
    core::set_default_flow(read.strategy);
    ASSERT_TRUE(tuner::write_file_atomically(file, tuner::to_json(read)).ok());
  }
  group->barrier()->wait();
}

TEST(TrainedLists, WhoTakesSparseGradientsAloneFindsThemAlsoWhereResidualsAreOwed) {
  const TempFolder folder;
  const std::string file = folder.path("strategy.json");
  run_ranks(2, [&](const Rank& rank) {
    auto group = make_group();
    write_with_residuals(rank, group, file);
    Table model;
    Session session(trained_by(lists_of_table(model)), group,
                    quiet({.fidelity = "lossy", .strategy = file, .tuning_budget = 0}));
    EXPECT_THAT(session.describe_in_force(), HasSubstr("topk:0.05"));
    for (int step = 0; step < 6; ++step) {
      const bool is_used = step != 3;
      torch::manual_seed(10 * step + rank.rank);
      step_of(session, model, is_used ? torch::randint(50, {12}) : torch::Tensor());
      const torch::Tensor average = model->table->weight.grad();
      ASSERT_TRUE(average.defined() && average.is_sparse() && average.is_coalesced()) << step;
      EXPECT_GT(average._nnz(), 0) << "also what was owed, in step " << step;
    }
  });
}

struct Recorder final : Front {
  explicit Recorder(std::string& its_text) : text(its_text) {}
  void say(std::string_view said) override { text += said; }
  bool is_terminal() const override { return false; }
  void warn(const std::string& sentence) override { text += "warning: " + sentence + "\n"; }
  [[noreturn]] void raise(const core::Exception& error) override {
    throw std::domain_error(std::string("raised: ") + error.what());
  }
  core::Status interrupted() override {
    if (!wants_end) return {};
    return core::Error{core::Error::Code::peer, "interrupted by its user"};
  }
  std::string& text;
  bool wants_end = false;
};

TEST(TrainedLists, TheFrontIsToldAndRaisesErrorsOutOfBackward) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    std::string text;
    auto recorder = std::make_shared<Recorder>(text);
    Recorder& front = *recorder;
    Options options = quiet();
    options.quiet = false;
    Session session(trained_by(lists_of(*model)), group, options, std::make_unique<core::SteadyClock>(), recorder);
    EXPECT_EQ(rank.rank == 0, text.find("gradtune: ") == 0) << text;
    for (int step = 0; step < 2; ++step) {
      loss_of(model, make_data(rank.rank, step)).backward();
      session.begin_update();
      sgd.step();
      session.end_update();
    }
    // The other rank does not come, and the user of this one loses patience.
    if (rank.rank == 0) {
      front.wants_end = true;
      EXPECT_THAT(message_of([&] { loss_of(model, make_data(0, 2)).backward(); }),
                  HasSubstr("raised: gradtune: rank 0 at step 2: interrupted by its user"));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(800));
      EXPECT_THAT(message_of([&] { loss_of(model, make_data(1, 2)).backward(); }),
                  HasSubstr("rank 0 at step 2: interrupted by its user"));
    }
  });
}

TEST(TrainedLists, WhoGivesUpTellsTheOthersWhy) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    Session session(trained_by(lists_of(*model)), group, quiet());
    if (rank.rank == 1) return session.give_up("its script ended with ValueError: no such file");
    EXPECT_THAT(message_of([&] { loss_of(model, make_data(0, 0)).backward(); }),
                HasSubstr("rank 1 at step 0: its script ended with ValueError: no such file"));
  });
}

}  // namespace
}  // namespace gradtune::test
