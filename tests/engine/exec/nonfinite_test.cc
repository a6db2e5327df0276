// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests steps with gradients that are not finite on some rank. All ranks notice it and hold the same bits. Buckets
// that carry NaN and Inf faithfully keep them as plain sums do, all others become NaN, and state that is kept
// between steps does not change.
#include "engine/exec/nonfinite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/engine/exec/fleet.h"

namespace gradtune::exec {
namespace {

using core::DType;
using core::Place;

void expect_ok(const std::vector<core::Status>& statuses) {
  for (const core::Status& status : statuses) ASSERT_TRUE(status.ok()) << status.error().message;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool all_nan(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isnan(value); });
}

// Tells for each element if its bucket carries values that are not finite.
std::vector<bool> carries(Rank& rank, const core::GradientTable& table) {
  const Program& program = rank.executor().program();
  std::vector<bool> all;
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    for (const Piece& piece : program.pieces_of_tensor[t]) {
      all.insert(all.end(), static_cast<size_t>(piece.length),
                 program.buckets[static_cast<size_t>(piece.bucket)].carries_nonfinite);
    }
  }
  return all;
}

// --- One element that is not finite ----------------------------------------------------------------------------------

class NonFinite : public testing::TestWithParam<float> {
 protected:
  static constexpr int kSize = 3;
  const core::GradientTable table_ = mixed_table();
  core::Rng rng_{3};
  int64_t carried_ = 0, spread_ = 0;  // counts of elements

  // A step of `fleet` with the value at that place of one rank, beside the same step of `calm` with a number there.
  void poisoned_step(Fleet& fleet, Fleet& calm, size_t at) {
    std::vector<Values> gradients = random_gradients(table_, kSize, rng_);
    expect_ok(calm.step(gradients));
    gradients[at % kSize][at] = GetParam();
    expect_ok(fleet.step(gradients));
    const Values average = fleet.rank(0).average(), expected = calm.rank(0).average();
    const std::vector<bool> is_left = carries(fleet.rank(0), table_);
    ASSERT_EQ(is_left.size(), average.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < average.size(); ++i) {
      if (!is_left[i]) {
        wrong += std::isnan(average[i]) ? 0 : 1;
      } else if (i == at) {
        const bool same = std::isnan(GetParam()) ? std::isnan(average[i]) : average[i] == GetParam();
        wrong += same ? 0 : 1;
      } else {
        wrong += average[i] == expected[i] ? 0 : 1;
      }
      ++(is_left[i] ? carried_ : spread_);
    }
    EXPECT_EQ(wrong, 0) << "elements";
    for (int r = 0; r < kSize; ++r) {
      EXPECT_FALSE(fleet.rank(r).finite());
      EXPECT_TRUE(same_bits(fleet.rank(r).average(), average)) << "rank " << r;
    }
  }

  // Steps with and without that value leave the fleet as steps without it leave another one.
  void check(const core::Strategy& strategy) {
    Fleet fleet(kSize, table_, kWithHost), undisturbed(kSize, table_, kWithHost);
    for (Fleet* each : {&fleet, &undisturbed}) each->run(strategy);
    for (const size_t at : {size_t{0}, size_t{1234}, static_cast<size_t>(table_.numel() - 1)}) {
      const std::vector<Values> gradients = random_gradients(table_, kSize, rng_);
      for (Fleet* each : {&fleet, &undisturbed}) expect_ok(each->step(gradients));
      const std::vector<Values> before = fleet.residuals();
      Fleet calm(kSize, table_, kWithHost);
      calm.run(strategy);
      poisoned_step(fleet, calm, at);
      EXPECT_EQ(fleet.residuals(), before);
    }
    const std::vector<Values> gradients = random_gradients(table_, kSize, rng_);
    for (Fleet* each : {&fleet, &undisturbed}) expect_ok(each->step(gradients));
    EXPECT_EQ(fleet.rank(0).average(), undisturbed.rank(0).average());
    EXPECT_EQ(fleet.residuals(), undisturbed.residuals());
  }
};
INSTANTIATE_TEST_SUITE_P(Values, NonFinite, testing::Values(NAN, INFINITY, -INFINITY));

TEST_P(NonFinite, IsSeenByAllRanksAndLeavesNoTraceUnderEveryProgram) {
  std::vector<std::string> options = all_options(Place::device);
  options.emplace_back("efsignsgd:64: encode@host all_to_all decode@host encode@host all_gather decode@host");
  options.emplace_back("packed: encode@host all_to_all decode@host encode@host all_gather decode@host");
  options.emplace_back("reduce_scatter all_gather");
  for (const std::string& option : options) {
    SCOPED_TRACE(option);
    check(make_strategy(table_, option, 10'000, 2));
  }
  EXPECT_GT(carried_, 0);
  EXPECT_GT(spread_, 0);
}

// Buckets of one step are left unchanged or filled one by one.
TEST_P(NonFinite, ReachesWhatItsBucketsProgramLetsItReach) {
  const std::vector<std::string> options = {"all_reduce", "packed: encode@device all_gather decode@device",
                                            "topk:0.1: encode@device all_gather decode@device",
                                            "bf16: encode@host all_reduce decode@host",
                                            "int8:256: encode@device all_gather decode@device"};
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    core::Rng rng(seed);
    check(random_strategy(table_, options, rng));
  }
  EXPECT_GT(carried_, 0);
  EXPECT_GT(spread_, 0);
}

// A residual that one rank drained is in the average of all, and is still owed. So all ranks fill the bucket, even
// those that knew of no residual. When nothing is left to drain, buckets are left unchanged again.
TEST(NonFiniteDrains, AreUndoneOnAllRanks) {
  const core::GradientTable table = make_table({{400, DType::f32}, {300, DType::f32}});
  Fleet fleet(2, table);
  fleet.run(make_strategy(table, "topk:0.1: encode@device all_gather decode@device", 1'600, 2));
  core::Rng rng(1);
  const Values zeros(700, 0);
  for (int i = 0; i < 3; ++i) expect_ok(fleet.step({random_gradient(table, rng), zeros}));
  fleet.commit(make_strategy(table, "all_reduce", 1'600, 2));
  const std::vector<Values> owed = fleet.residuals();
  EXPECT_NE(owed[0], zeros);
  EXPECT_EQ(owed[1], zeros);

  Values bad = random_gradient(table, rng);
  bad[500] = INFINITY;
  expect_ok(fleet.step({random_gradient(table, rng), bad}));
  for (int r = 0; r < 2; ++r) EXPECT_TRUE(all_nan(fleet.rank(r).average())) << "rank " << r;
  EXPECT_EQ(fleet.residuals(), owed);

  bool drains = true;
  for (int i = 0; i < 200 && drains; ++i) {
    expect_ok(fleet.step({random_gradient(table, rng), random_gradient(table, rng)}));
    drains = fleet.rank(0).executor().drained(0) || fleet.rank(0).executor().drained(1);
  }
  EXPECT_FALSE(drains);
  expect_ok(fleet.step({random_gradient(table, rng), bad}));
  for (int r = 0; r < 2; ++r) {
    const Values average = fleet.rank(r).average();
    EXPECT_EQ(average[500], INFINITY);
    EXPECT_EQ(std::count_if(average.begin(), average.end(), [](float value) { return std::isfinite(value); }), 699);
  }
}

TEST(NonFiniteSums, AreThoseOfNumbers) {
  const core::GradientTable table = make_table({{4, DType::f32}});
  for (const std::string option : {"all_reduce", "packed: encode@device all_gather decode@device",
                                   "fp16: encode@device all_reduce decode@device"}) {
    Fleet fleet(2, table);
    fleet.run(make_strategy(table, option, 1 << 20, 1));
    expect_ok(fleet.step({{INFINITY, INFINITY, 1, -INFINITY}, {1, -INFINITY, 3, -INFINITY}}));
    for (int r = 0; r < 2; ++r) {
      const Values average = fleet.rank(r).average();
      EXPECT_EQ(average[0], INFINITY);
      EXPECT_TRUE(std::isnan(average[1]));
      EXPECT_EQ(average[2], 2);
      EXPECT_EQ(average[3], -INFINITY);
      EXPECT_TRUE(same_bits(average, fleet.rank(0).average()));
    }
  }
}

// --- Finite gradients whose averages are not -------------------------------------------------------------------------

TEST(Overflow, OfASumOfFiniteSharesIsSeen) {
  const core::GradientTable table = make_table({{100, DType::f32}});
  for (const std::string option : {"fp16: encode@device all_reduce decode@device",
                                   "fp16: encode@device all_reduce@intra all_reduce@inter decode@device"}) {
    Fleet fleet(make_groups(4, 2), table, kWithHost);
    fleet.run(make_strategy(table, option, 1 << 20, 1));
    expect_ok(fleet.step(std::vector<Values>(4, Values(100, 6e4F))));
    EXPECT_EQ(fleet.rank(0).average(), Values(100, 6e4F)) << option;
    expect_ok(fleet.step(std::vector<Values>(4, Values(100, 1e5F))));  // each share, a quarter of it, is finite
    for (int r = 0; r < 4; ++r) {
      EXPECT_FALSE(fleet.rank(r).finite()) << option;
      EXPECT_EQ(fleet.rank(r).average(), Values(100, INFINITY)) << option;
    }
  }
}

// Three times 65504 / 3, rounded up, is more than a float16 can be.
TEST(Overflow, OfASumOfGradientsThemselvesIsSeen) {
  const core::GradientTable table = make_table({{100, DType::f16}});
  Fleet fleet(3, table);
  fleet.run(make_strategy(table, "all_reduce", 1 << 20, 1));
  expect_ok(fleet.step(std::vector<Values>(3, Values(100, 65504))));
  for (int r = 0; r < 3; ++r) EXPECT_FALSE(fleet.rank(r).finite());
}

// A residual makes an average larger than any gradient: all ranks find the overflow after the control word has left.
TEST(Overflow, OfAnAverageThatIsStoredIsSeen) {
  const core::GradientTable table = make_table({{10, DType::f16}});
  Fleet fleet(2, table);
  fleet.run(make_strategy(table, "topk:0.1: encode@device all_gather decode@device", 1 << 20, 1));
  Values first(10, 0);
  first[3] = 6e4F;
  first[7] = 5e4F;  // stays as a residual
  Values second(10, 0);
  second[7] = 4e4F;
  expect_ok(fleet.step({first, first}));
  const std::vector<Values> before = fleet.residuals();
  EXPECT_NE(before[0][7], 0);
  expect_ok(fleet.step({second, second}));
  EXPECT_TRUE(fleet.rank(0).finite()) << "the control word has not seen it";
  for (int r = 0; r < 2; ++r) EXPECT_TRUE(all_nan(fleet.rank(r).average()));
  EXPECT_EQ(fleet.residuals(), before);
  EXPECT_EQ(*fleet.rank(1).executor().carried().step, 1U);
}

// --- Bits ------------------------------------------------------------------------------------------------------------

template <typename Bits>
void check_bits(DType dtype, Bits infinity) {
  std::vector<Bits> before, after;
  constexpr auto kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  for (const Bits sign : {Bits{0}, kSign}) {
    for (const int offset : {-2, -1, 0, 1, 2}) before.push_back(static_cast<Bits>((infinity + offset) | sign));
    for (const Bits bits : {Bits{0}, Bits{1}, static_cast<Bits>(kSign - 1)}) before.push_back(bits | sign);
  }
  for (const Bits bits : before) {
    const bool is_nan = static_cast<Bits>(bits & ~kSign) > infinity;
    after.push_back(is_nan ? static_cast<Bits>(~Bits{0}) : bits);
  }
  make_nans_alike(reinterpret_cast<std::byte*>(before.data()), dtype, static_cast<int64_t>(before.size()));
  EXPECT_EQ(before, after);
  std::memset(before.data(), std::to_integer<int>(kNanByte), before.size() * sizeof before[0]);
  EXPECT_EQ(before[2], static_cast<Bits>(~Bits{0}));
  EXPECT_EQ(before[3], after[3]);
}

TEST(NonFiniteBits, NansBecomeAlikeAndNothingElseChanges) {
  check_bits<uint32_t>(DType::f32, 0x7f800000);
  check_bits<uint16_t>(DType::bf16, 0x7f80);
  check_bits<uint16_t>(DType::f16, 0x7c00);
  check_bits<uint64_t>(DType::f64, 0x7ff0000000000000);
  make_nans_alike(nullptr, DType::f32, 0);
}

}  // namespace
}  // namespace gradtune::exec
