// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Compressed training converges, and nothing is lost on the way. The problem is softmax regression, which is convex,
// on four real ranks. No rank has a class of another, so no rank can replace what another one drops. Every 7 steps
// another program and another partition of the same compressor are put in force.
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "engine/core/rng.h"
#include "tests/hooks/gloo_executor.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

using core::DType;
using exec::Values;

constexpr int kSize = 4, kLocalSize = 2;
constexpr int kSteps = 350, kStepsOfStrategy = 7;

// Mean cross-entropy and a small quadratic term. Parameters: weights of the first features, of the others, and
// biases.
class Regression {
 public:
  static constexpr size_t kClasses = 24, kFirst = 32, kFeatures = 56, kBiases = kClasses * kFeatures;
  static constexpr size_t kParameters = kBiases + kClasses;

  // The samples of a rank, all of them in classes that no other rank has.
  explicit Regression(int rank) {
    core::Rng means(1);
    std::vector<double> mean(kClasses * kFeatures);
    for (double& value : mean) value = means.normal();
    core::Rng rng(100 + static_cast<uint64_t>(rank));
    for (size_t label = static_cast<size_t>(rank); label < kClasses; label += kSize) {
      for (int sample = 0; sample < 8; ++sample) {
        labels_.push_back(label);
        for (size_t f = 0; f < kFeatures; ++f) features_.push_back(mean[label * kFeatures + f] + 1.5 * rng.normal());
      }
    }
  }

  static core::GradientTable table() {
    const auto tensor = [](const char* name, size_t columns) {
      const auto rows = static_cast<int64_t>(kClasses), wide = static_cast<int64_t>(columns);
      return core::TensorInfo{.name = name, .shape = {rows, wide}, .numel = rows * wide, .dtype = DType::f32};
    };
    return {.tensors = {tensor("first", kFirst), tensor("second", kFeatures - kFirst), tensor("bias", 1)}};
  }

  // The mean over this rank's samples, and its gradient.
  double loss(const std::vector<double>& parameters, Values* gradient = nullptr) const {
    std::vector<double> sum(kParameters);
    double total = 0;
    for (size_t s = 0; s < labels_.size(); ++s) {
      const double* const x = &features_[s * kFeatures];
      std::array<double, kClasses> scores{};
      double partition = 0;
      for (size_t c = 0; c < kClasses; ++c) {
        scores[c] = parameters[kBiases + c];
        for (size_t f = 0; f < kFeatures; ++f) scores[c] += parameters[at(c, f)] * x[f];
      }
      for (double score : scores) partition += std::exp(score);
      total += std::log(partition) - scores[labels_[s]];
      for (size_t c = 0; c < kClasses && gradient != nullptr; ++c) {
        const double slope = std::exp(scores[c]) / partition - (c == labels_[s] ? 1 : 0);
        for (size_t f = 0; f < kFeatures; ++f) sum[at(c, f)] += slope * x[f];
        sum[kBiases + c] += slope;
      }
    }
    const auto samples = static_cast<double>(labels_.size());
    double squares = 0;
    for (double parameter : parameters) squares += parameter * parameter;
    if (gradient != nullptr) {
      gradient->resize(kParameters);
      for (size_t i = 0; i < kParameters; ++i) {
        (*gradient)[i] = static_cast<float>(sum[i] / samples + kDecay * parameters[i]);
      }
    }
    return total / samples + kDecay / 2 * squares;
  }

 private:
  static constexpr double kDecay = 0.02;

  // Rows of a tensor are classes.
  static size_t at(size_t c, size_t f) {
    return f < kFirst ? c * kFirst + f : kClasses * kFirst + c * (kFeatures - kFirst) + f - kFirst;
  }

  std::vector<double> features_;
  std::vector<size_t> labels_;
};

// The given, applied and remaining values, in fp64.
struct Ledger {
  std::vector<double> given = std::vector<double>(Regression::kParameters), applied = given;
  double size = 0;  // norms of all given and remaining values, step by step

  void add(const Values& gradient, const Values& average) {
    double squares = 0;
    for (size_t i = 0; i < given.size(); ++i) {
      given[i] += static_cast<double>(gradient[i]);
      applied[i] += static_cast<double>(average[i]);  // on each rank, so the sum over ranks is the applied value
      squares += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    }
    size += std::sqrt(squares);
  }

  // The difference between both, over all ranks, relative to the size of the given values.
  double lost(comm::Communicator& group, const Values& left) const {
    const std::vector<double> sum = summed(group, given), applied_sum = summed(group, applied);
    const std::vector<double> left_sum = summed(group, in_fp64(left));
    double squares = 0;
    for (size_t i = 0; i < sum.size(); ++i) squares += std::pow(applied_sum[i] + left_sum[i] - sum[i], 2);
    return std::sqrt(squares) / summed(group, {size})[0];
  }
};

struct Trained {
  double loss = 0;  // over all data
  double lost = 0;  // the largest loss in the ledger
};

// Trainings of one process, one after the other.
class Trainer {
 public:
  explicit Trainer(const Rank& rank) : rank_(rank.rank), data_(rank.rank), group_(make_group()) {}

  // Trains from zero, with these options in turn.
  Trained train(const std::vector<std::string>& options, double rate) {
    exec::RankGroups groups =
        connect(group_->getStore(), rank_, kSize, kLocalSize, "training" + std::to_string(trainings_++) + "/");
    comm::Communicator& flat = *groups.flat;
    exec::Rank me(Regression::table(), std::move(groups), {.host_threads = 1, .timeout_ms = 30'000});
    const std::vector<int64_t> bucket_bytes = {1200, 20000, 3500};
    const auto strategies = static_cast<int32_t>(std::lcm(options.size(), bucket_bytes.size()));
    for (int32_t slot = 0; slot < strategies; ++slot) {
      const auto s = static_cast<size_t>(slot);
      const core::Strategy strategy = exec::make_strategy(Regression::table(), options[s % options.size()],
                                                          bucket_bytes[s % bucket_bytes.size()], 1 + slot % 3);
      EXPECT_TRUE(me.executor().prepare(slot, strategy).ok()) << options[s % options.size()];
    }
    Trained trained;
    Ledger ledger;
    std::vector<double> parameters(Regression::kParameters);
    Values gradient;
    for (int step = 0; step < kSteps; ++step) {
      if (step % kStepsOfStrategy == 0) me.executor().run(step / kStepsOfStrategy % strategies);
      data_.loss(parameters, &gradient);
      const core::Status status = me.step(gradient);
      EXPECT_TRUE(status.ok()) << status.error().message;
      if (!status) break;
      const Values average = me.average();
      ledger.add(gradient, average);
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i] -= rate * static_cast<double>(average[i]);
      if ((step + 1) % kStepsOfStrategy == 0) {
        trained.lost = std::max(trained.lost, ledger.lost(flat, me.residual()));
      }
    }
    trained.loss = summed(flat, {data_.loss(parameters)})[0] / kSize;
    return trained;
  }

 private:
  int rank_, trainings_ = 0;
  Regression data_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

constexpr double kRate = 0.1;
constexpr double kAllowed = 1.05;  // factor over the loss of fp32

// All programs of a compressor, at both places.
std::vector<std::string> options_of(const core::CompressorTraits& traits) {
  const core::CompressorSpec codec{std::string(traits.name), traits.parameter_default};
  std::vector<core::Option> options;
  if (traits.summable) options.push_back(core::encoded_all_reduce(codec, core::Place::device, traits.rounds));
  if (traits.rounds == 1) {
    options.push_back(core::gather_payloads(codec, core::Place::host));
    options.push_back(core::two_step(codec, core::Place::device));
  }
  std::vector<std::string> printed;
  for (const core::Option& option : options) printed.push_back(core::to_string(option));
  return printed;
}

TEST(Convergence, EveryCompressorThatFeedsErrorsBackEndsAsFp32AndLosesNothing) {
  run_ranks(kSize,
            [](const Rank& rank) {
              Trainer trainer(rank);
              const double fp32 = trainer.train({"all_reduce"}, kRate).loss;
              std::vector<std::string> all;
              for (const core::CompressorTraits& traits : compress::known_traits()) {
                if (!traits.error_feedback) continue;
                const std::vector<std::string> options = options_of(traits);
                const Trained trained = trainer.train(options, kRate);
                std::printf("%-10s loss %.4f, of fp32 %.3f, lost %.1e\n", std::string(traits.name).c_str(),
                            trained.loss, trained.loss / fp32, trained.lost);
                std::fflush(stdout);
                EXPECT_LE(trained.loss, kAllowed * fp32) << traits.name;
                if (traits.replaces_momentum) continue;  // its ledger also has momentum
                EXPECT_LE(trained.lost, 1e-6) << traits.name;
                all.push_back(options[all.size() % options.size()]);
              }
              // Also switches from each of them to the next.
              const Trained trained = trainer.train(all, kRate);
              EXPECT_LE(trained.loss, kAllowed * fp32);
              EXPECT_LE(trained.lost, 1e-6);
            },
            {.time_limit_s = 280});
}

// Shows that the check can fail: votes of ranks that know different classes are not the average, at any rate.
TEST(Convergence, SignsWithoutErrorFeedbackDoNot) {
  run_ranks(
      kSize,
      [](const Rank& rank) {
        Trainer trainer(rank);
        const double fp32 = trainer.train({"all_reduce"}, kRate).loss;
        const std::vector<std::string> options = options_of(*core::traits_of({"signsgd", 0}, compress::known_traits()));
        for (const double rate : {0.01, 0.003, 0.001}) {
          const double loss = trainer.train(options, rate).loss;
          std::printf("signsgd at %.3f loss %.4f, of fp32 %.3f\n", rate, loss, loss / fp32);
          EXPECT_GT(loss, kAllowed * fp32) << rate;
        }
      },
      {.time_limit_s = 120});
}

}  // namespace
}  // namespace gradtune::test
