// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/engine/exec/fleet.h"

namespace gradtune::exec {
namespace {

using core::DType;

// Every compressor with error feedback, in programs of one step and of two.
std::vector<std::string> options_of(const core::CompressorTraits& traits) {
  const core::CompressorSpec spec{std::string(traits.name), traits.parameter_default};
  if (traits.summable) return {core::to_string(core::encoded_all_reduce(spec, core::Place::device, traits.rounds))};
  const std::string codec = core::to_string(spec);
  return {codec + ": encode@device all_gather decode@device",
          codec + ": encode@device all_to_all decode@device encode@device all_gather decode@device"};
}

template <typename Body>
void for_each_option(Body body) {
  int options = 0;
  for (const core::CompressorTraits& traits : compress::known_traits()) {
    if (!traits.error_feedback || traits.replaces_momentum) continue;
    for (const std::string& option : options_of(traits)) {
      SCOPED_TRACE(option);
      body(option);
      ++options;
    }
  }
  EXPECT_GE(options, 20);
}

TEST(Balance, OfEveryCompressorPayloadAndResidualAreWhatWasGiven) {
  for_each_option([](const std::string& option) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      core::GradientTable table = make_table({{6'000, dtype}});
      table.tensors[0].shape = {60, 100};
      Fleet fleet(2, table);
      fleet.run(make_strategy(table, option, 1 << 28, 1));
      core::Rng rng(7);
      int known = 0;
      for (uint32_t step = 0; step < 2 * kBalanceSteps + 2; ++step) {
        for (const core::Status& status : fleet.step(random_gradients(table, 2, rng))) ASSERT_TRUE(status.ok());
        for (int r = 0; r < 2; ++r) {
          const core::BucketLoss loss = fleet.rank(r).executor().loss(0);
          EXPECT_LT(loss.imbalance, 2e-5) << "step " << step;
          known += loss.imbalance >= 0 ? 1 : 0;
        }
      }
      // In the step that is checked, and in the next one, which begins with its residual; on both ranks.
      EXPECT_EQ(known, 3 * 2 * 2);
    }
  });
}

TEST(Balance, AveragesDoNotKnowOfIt) {
  const std::string option = "int8:256: encode@device all_gather decode@device";
  const core::GradientTable table = make_table({{3'000, DType::f32}});
  Fleet fleet(2, table);
  fleet.run(make_strategy(table, option, 1 << 28, 1));
  core::Rng rng(7);
  Values kept(3'000, 0);
  const auto codec = compress::make_compressor({"int8", 256}).value();
  for (uint32_t step = 0; step < kBalanceSteps + 1; ++step) {
    const std::vector<Values> gradients = random_gradients(table, 2, rng);
    for (const core::Status& status : fleet.step(gradients)) ASSERT_TRUE(status.ok());
    // The applied and kept values equal the given and formerly kept ones, over both ranks.
    double worst = 0;
    const Values average = fleet.rank(0).average();
    const std::vector<Values> left = fleet.residuals();
    Values after(3'000);
    for (size_t i = 0; i < after.size(); ++i) {
      after[i] = left[0][i] + left[1][i];
      const double given = gradients[0][i] + gradients[1][i] + kept[i];
      worst = std::max(worst, std::abs(given - 2.0 * average[i] - after[i]));
    }
    EXPECT_LT(worst, 1e-4) << step;
    kept = after;
  }
}

// A compressor that changes its input or output.
class Changed final : public compress::Compressor {
 public:
  using Encoding = std::function<void(const compress::Encode&)>;
  using Decoding = std::function<void(const compress::Decode&)>;
  Changed(const compress::Compressor& of, Encoding encoded, Decoding decoded)
      : of_(of), encoded_(std::move(encoded)), decoded_(std::move(decoded)) {}

  const core::CompressorTraits& traits() const override { return of_.traits(); }
  const core::CompressorSpec& spec() const override { return of_.spec(); }
  int64_t scratch_bytes(const core::Extent& extent) const override { return of_.scratch_bytes(extent); }
  void encode(const compress::Encode& job, compress::Queue& queue) const override {
    of_.encode(job, queue);
    if (encoded_) encoded_(job);
  }
  void decode(const compress::Decode& job, compress::Queue& queue) const override {
    of_.decode(job, queue);
    if (decoded_) decoded_(job);
  }
  core::Error defect(const compress::Decode& job, size_t position) const override { return of_.defect(job, position); }

 private:
  const compress::Compressor& of_;
  Encoding encoded_;
  Decoding decoded_;
};

// The imbalance of one bucket of that many elements, which one rank of two encodes.
double imbalance_with(Changed::Encoding encoded, Changed::Decoding decoded, int64_t n = 1 << 20) {
  const core::GradientTable table = make_table({{n, DType::f32}});
  const auto program = compile(make_strategy(table, "int4:64: encode@device all_gather decode@device", 1 << 30, 1),
                               table, {.rank = 0, .size = 2})
                           .value();
  BucketProgram bucket = program->buckets[0];
  EXPECT_TRUE(can_be_balanced(bucket));
  Op& op = bucket.ops[static_cast<size_t>(bucket.sampled_op)];
  auto& encode = std::get<Encode>(op.work);
  const Changed changed(*encode.codec, std::move(encoded), std::move(decoded));
  encode.codec = &changed;
  AlignedBytes pool = AlignedBytes::zeros(program->pool_bytes[core::Space::host]);
  core::Rng rng(3);
  Values gradient(static_cast<size_t>(n)), residual(gradient.size()), next(gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(rng.uniform() - 0.5);
    residual[i] = static_cast<float>(0.1 * rng.uniform() - 0.05);
  }
  const BucketMemory memory{.pools = {{pool.data(), nullptr}},
                            .gradient = reinterpret_cast<std::byte*>(gradient.data()),
                            .residual = residual.data(),
                            .residual_next = next.data(),
                            .state = {},
                            .state_next = {},
                            .device = nullptr,
                            .size = 2,
                            .divisor = 2,
                            .seed = 1,
                            .step = 0};
  const auto queue = compress::make_serial_queue();
  compress::Verdict verdict;
  Balance balance;
  EXPECT_TRUE(run_op(bucket, op, memory, *queue, verdict).ok());
  find_balance(bucket, memory, *queue, balance, verdict);
  return imbalance(balance, 2);
}

TEST(Balance, FindsADecoderThatIsOffByOneAndOneBlockWithAWrongScale) {
  constexpr double kBroken = 1e-3;
  EXPECT_LT(imbalance_with({}, {}), 1e-6);
  const auto shifted = [](const compress::Decode& job) { std::shift_right(job.out.begin(), job.out.end(), 1); };
  EXPECT_GT(imbalance_with({}, shifted), 100 * kBroken);
  // Changes one code in each block of 64 by one unit.
  const auto one_off = [](const compress::Decode& job) {
    for (size_t i = 0; i < job.out.size(); i += 64) job.out[i] += 0.5F / 7 / 2;
  };
  EXPECT_GT(imbalance_with({}, one_off), 3 * kBroken);
  const auto doubled = [](const compress::Decode& job) {
    for (size_t i = 640; i < 704; ++i) job.out[i] *= 2;
  };
  EXPECT_GT(imbalance_with({}, doubled), 1.5 * kBroken) << "64 of a million";
}

TEST(Balance, FindsAnEncoderThatKeepsNothingAndOneThatIsNotGivenTheResidual) {
  const auto forgetful = [](const compress::Encode& job) { std::fill_n(job.residual_next, job.gradient.size(), 0.0F); };
  EXPECT_GT(imbalance_with(forgetful, {}), 0.05);
  const auto deaf = [](const compress::Encode& job) {
    for (size_t i = 0; i < job.gradient.size(); ++i) job.residual_next[i] -= job.residual[i];
  };
  EXPECT_GT(imbalance_with(deaf, {}), 0.05);
}

TEST(Balance, AStepThatBeginsWithAnotherResidualThanWasKeptIsFound) {
  const Total kept{.sum = 3, .squares = 100};
  EXPECT_EQ(loss_of_residual(kept, kept), 0);
  EXPECT_NEAR(loss_of_residual(kept, {.sum = 0, .squares = 0}), 0.3, 1e-12);
  EXPECT_EQ(loss_of_residual({}, {}), 0);
  EXPECT_EQ(loss_of_residual({}, kept), 1);
}

TEST(Balance, ATotalTellsPlacesApart) {
  Values values(5'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
  Values moved(values.rbegin(), values.rend());
  Total here, there, sum;
  find_total({.values = values.data(), .n = 5'000, .to = &here});
  find_total({.values = moved.data(), .n = 5'000, .to = &there});
  find_total({.values = values.data(), .others = moved.data(), .n = 5'000, .to = &sum});
  EXPECT_EQ(here.squares, there.squares);
  EXPECT_NE(here.sum, there.sum);
  EXPECT_NEAR(sum.sum, here.sum + there.sum, 1e-9);
}

}  // namespace
}  // namespace gradtune::exec
