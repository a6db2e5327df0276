// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests scaling in place: it gives the bits of a plain loop, for every target, length, address and number of
// threads.
#include "engine/compress/simd/scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

struct Scaled {
  std::vector<float> values, residual_next;
  bool finite;
};

Scaled scale(const std::vector<float>& values, const std::vector<float>& residual, float factor, size_t misaligned,
             compress::HostQueue& queue) {
  Guarded<float> in_place(values, misaligned), added(residual, misaligned + 1);
  Guarded<float> next(residual.size(), misaligned + 2);
  const bool has_residual = !residual.empty();
  compress::Verdict verdict;
  compress::scale({.values = in_place.span(),
                   .residual = has_residual ? added.data() : nullptr,
                   .residual_next = has_residual ? next.data() : nullptr,
                   .factor = factor,
                   .verdict = &verdict},
                  queue);
  EXPECT_TRUE(in_place.intact() && added.intact() && next.intact());
  EXPECT_TRUE(same_bytes(added.span(), residual));
  return {in_place.values(), next.values(), verdict.nonfinite == 0};
}

// The reference, element by element.
std::vector<float> expected(std::vector<float> values, const std::vector<float>& residual, float factor) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!residual.empty()) values[i] += residual[i];
    values[i] *= factor;
  }
  return values;
}

TEST(Scaling, GivesTheBitsOfThePlainLoop) {
  const auto serial = compress::make_serial_queue(), three = make_thread_queue(3);
  for (const int64_t target : simd_targets()) {
    const ScopedTarget use(target);
    for (const size_t n : {0, 1, 2, 15, 16, 17, 255, 256, 257, 8191, 8193, 70001, 270001}) {
      std::vector<float> values = make_data(Data::layered, n, 3);
      for (size_t i = 0; i < n; i += 7) values[i] *= 0x1p-140F;  // some products become subnormal
      for (const bool has_residual : {false, true}) {
        const std::vector<float> residual = has_residual ? make_data(Data::normal, n, 4) : std::vector<float>();
        const std::vector<float> wanted = expected(values, residual, 1.0F / 3);
        for (compress::HostQueue* queue : {serial.get(), three.get()}) {
          for (const size_t misaligned : {0, 1, 5}) {
            const Scaled scaled = scale(values, residual, 1.0F / 3, misaligned, *queue);
            EXPECT_TRUE(scaled.finite);
            EXPECT_TRUE(same_bytes(scaled.values, wanted)) << target_name(target) << ", " << n;
            EXPECT_TRUE(same_bytes(scaled.residual_next, std::vector<float>(residual.size()))) << n;
          }
        }
      }
    }
  }
}

TEST(Scaling, SeesWhatIsNotFiniteWhereverItIs) {
  const auto queue = compress::make_serial_queue();
  for (const int64_t target : simd_targets()) {
    const ScopedTarget use(target);
    for (const size_t n : {1, 2, 17, 300, 9001}) {
      const std::vector<float> values = make_data(Data::normal, n, 5), residual = make_data(Data::normal, n, 6);
      for (size_t position = 0; position < n; position += position < 64 || n - position < 64 ? 1 : 61) {
        for (const float value : {kNan, -kNan, kInfinity, -kInfinity}) {
          std::vector<float> bad = values;
          bad[position] = value;
          const Scaled scaled = scale(bad, {}, 0.5F, position % 5, *queue);
          EXPECT_FALSE(scaled.finite) << value << " at " << position << " of " << n;
          EXPECT_FALSE(std::isfinite(scaled.values[position]));
          bad = residual;
          bad[position] = value;
          EXPECT_FALSE(scale(values, bad, 0.5F, position % 3, *queue).finite);
        }
      }
    }
  }
}

// The verdict is about results: an overflow on the way is not finite, and the largest float is finite.
TEST(Scaling, JudgesResults) {
  const auto queue = compress::make_serial_queue();
  EXPECT_TRUE(scale({1, kLargest, 2}, {}, 1, 0, *queue).finite);
  EXPECT_TRUE(scale({-kLargest}, {}, 1, 0, *queue).finite);
  EXPECT_FALSE(scale({1, kLargest, 2}, {}, 2, 0, *queue).finite);
  EXPECT_FALSE(scale({1, kLargest}, {0, kLargest}, 0.25F, 0, *queue).finite);
  EXPECT_TRUE(scale({}, {}, 0.5F, 0, *queue).finite);
}

}  // namespace
}  // namespace gradtune::suites
