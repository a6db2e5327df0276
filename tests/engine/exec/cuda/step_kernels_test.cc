// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of executors other than compressors give the bits of the host's functions, in every schedule of
// threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/core/float16.h"
#include "engine/core/rng.h"
#include "engine/exec/compute.h"
#include "engine/exec/cuda/kernels.h"
#include "engine/exec/nonfinite.h"
#include "tests/suites/tested_device.h"

namespace gradtune::exec {
namespace {

using core::DType;
using suites::finish;
using suites::Schedule;

constexpr Schedule kSchedules[] = {Schedule::forward, Schedule::reverse, Schedule::shuffled};

class StepKernels : public testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override { suites::use_schedule(GetParam()); }
  void TearDown() override { suites::use_schedule(Schedule::forward); }

  const std::unique_ptr<Kernels> kernels_ = cuda::make_kernels(0).value();
  compress::Queue& queue_ = suites::device_queue();
  const std::unique_ptr<compress::HostQueue> host_ = compress::make_serial_queue();
};
INSTANTIATE_TEST_SUITE_P(Schedules, StepKernels, testing::ValuesIn(kSchedules));

// Aligned to 16 bytes, or one element off with an odd `shift`.
struct Floats {
  explicit Floats(int64_t count, int64_t after = 0) : all(static_cast<size_t>(count + 4)), n(count), shift(after) {}
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(all.data());
    return all.data() + (16 - address % 16) % 16 / 4 + shift % 2;
  }
  std::vector<float> values() { return {data(), data() + n}; }

  std::vector<float> all;
  int64_t n, shift;
};

Floats random_floats(int64_t n, uint64_t seed, int64_t shift = 0) {
  Floats floats(n + 4, shift);
  floats.n = n;
  core::Rng rng(seed);
  for (int64_t i = 0; i < n; ++i) {
    floats.data()[i] =
        (static_cast<float>(rng.below(20'001)) - 10'000) * std::ldexp(1.0F, static_cast<int>(rng.below(30)) - 25);
  }
  return floats;
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

constexpr int64_t kSizes[] = {1, 3, 255, 2048, 2051, 9'000};

// Residuals lie at any address in their arenas, even if values are an aligned copy.
struct Shifts {
  int64_t values, residual, next;
};
constexpr Shifts kShifts[] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 1}};

TEST_P(StepKernels, Scales) {
  for (const int64_t n : kSizes) {
    for (const Shifts& shift : kShifts) {
      for (const bool with_residual : {false, true}) {
        for (const bool is_bad : {false, true}) {
          Floats here = random_floats(n, 1, shift.values), there = random_floats(n, 1, shift.values);
          if (is_bad) here.data()[n / 2] = there.data()[n / 2] = std::numeric_limits<float>::infinity();
          Floats residual = random_floats(n, 2, shift.residual), next_here = random_floats(n, 3),
                 next_there = random_floats(n, 4, shift.next);
          compress::Verdict told_here, told_there;
          const auto job = [&](Floats& values, Floats& next, compress::Verdict& told) {
            return compress::Scaling{.values = {values.data(), static_cast<size_t>(n)},
                                     .residual = with_residual ? residual.data() : nullptr,
                                     .residual_next = with_residual ? next.data() : nullptr,
                                     .factor = 1.0F / 3,
                                     .verdict = &told};
          };
          compress::scale(job(here, next_here, told_here), *host_);
          kernels_->scale(job(there, next_there, told_there), queue_);
          finish(queue_);
          EXPECT_TRUE(same(here.values(), there.values())) << n;
          if (with_residual) {
            EXPECT_TRUE(same(next_here.values(), next_there.values())) << n;
          }
          EXPECT_EQ(told_here.nonfinite, told_there.nonfinite);
          EXPECT_EQ(told_here.nonfinite, is_bad ? 1U : 0U);
        }
      }
    }
  }
}

// All 16-bit numbers, and more.
std::vector<uint16_t> all_numbers() {
  std::vector<uint16_t> numbers;
  for (uint32_t i = 0; i < 65'536 + 77; ++i) numbers.push_back(static_cast<uint16_t>(i));
  return numbers;
}

TEST_P(StepKernels, ScalesNumbers) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto codec = compress::make_compressor({dtype == DType::bf16 ? "bf16" : "fp16"});
    for (const bool has_bad : {false, true}) {
      std::vector<uint16_t> here = all_numbers();
      if (!has_bad) {
        for (uint16_t& number : here) number &= 0x3fff;
      }
      std::vector<uint16_t> there = here;
      compress::Verdict told_here, told_there;
      const auto job = [&](std::vector<uint16_t>& numbers, compress::Verdict& told) {
        return NumbersScaling{.numbers = reinterpret_cast<std::byte*>(numbers.data()),
                              .dtype = dtype,
                              .n = static_cast<int64_t>(numbers.size()),
                              .factor = 1.0F / 3,
                              .summed = 3,
                              .verdict = &told};
      };
      scale(job(here, told_here), *codec.value(), *host_);
      kernels_->scale(job(there, told_there), queue_);
      finish(queue_);
      // Arithmetic on a GPU does not keep the bits of a NaN.
      for (std::vector<uint16_t>* numbers : {&here, &there}) {
        make_nans_alike(reinterpret_cast<std::byte*>(numbers->data()), dtype, static_cast<int64_t>(numbers->size()));
      }
      EXPECT_TRUE(same(here, there));
      EXPECT_EQ(told_here.nonfinite, told_there.nonfinite);
      EXPECT_EQ(told_here.nonfinite, has_bad ? 1U : 0U);
      EXPECT_EQ(told_here.used_bytes, told_there.used_bytes);
    }
  }
}

TEST_P(StepKernels, ScalesDoublePrecision) {
  for (const int64_t n : {int64_t{1}, int64_t{1'023}, int64_t{5'000}}) {
    for (const double bad : {0.0, HUGE_VAL, std::nan("")}) {
      std::vector<double> here;
      for (int64_t i = 0; i < n; ++i) here.push_back(std::ldexp(1.0 / static_cast<double>(3 * i + 1), i % 7 * 100));
      here.back() += bad;
      std::vector<double> there = here;
      std::vector<double> expected = here;
      for (double& value : expected) value *= 1.0 / 3;
      compress::Verdict told_here, told_there;
      compress::scale({.values = here, .factor = 1.0 / 3, .verdict = &told_here}, *host_);
      kernels_->scale(compress::DoubleScaling{.values = there, .factor = 1.0 / 3, .verdict = &told_there}, queue_);
      finish(queue_);
      for (std::vector<double>* values : {&here, &there, &expected}) {
        make_nans_alike(reinterpret_cast<std::byte*>(values->data()), DType::f64, n);
      }
      EXPECT_TRUE(same(here, expected)) << n;
      EXPECT_TRUE(same(there, expected)) << n;
      EXPECT_EQ(told_here.nonfinite, bad == 0 ? 0U : 1U);
      EXPECT_EQ(told_there.nonfinite, bad == 0 ? 0U : 1U);
    }
  }
}

TEST_P(StepKernels, MakesNansAlike) {
  for (const DType dtype : core::kDTypes) {
    std::vector<uint16_t> here = all_numbers();
    here.resize(65'600);
    here[65'598] = here[65'599] = 0x7ff9;  // the last one of each dtype is a NaN
    std::vector<uint16_t> there = here;
    const int64_t n = static_cast<int64_t>(here.size()) * 2 / core::bytes_per_element(dtype);
    make_nans_alike(reinterpret_cast<std::byte*>(here.data()), dtype, n);
    kernels_->make_nans_alike(reinterpret_cast<std::byte*>(there.data()), dtype, n, queue_);
    finish(queue_);
    EXPECT_TRUE(same(here, there));
    EXPECT_EQ(there.back(), 0xffff);
  }
}

// Sizes of residuals, as multiples of gradients; `bad` and `no_gradient`: gradients that are not finite, or zero.
enum class Kind : uint8_t { tiny, small, large, none, bad, no_gradient };

TEST_P(StepKernels, Drains) {
  for (const int64_t n : {int64_t{5}, int64_t{4'097}, int64_t{20'000}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const Kind kind : {Kind::tiny, Kind::small, Kind::large, Kind::none, Kind::bad, Kind::no_gradient}) {
        const int64_t width = core::bytes_per_element(dtype);
        Floats numbers = random_floats(n, 5), residual = random_floats(n, 6);
        std::vector<std::byte> here(static_cast<size_t>(n * width));
        for (int64_t i = 0; i < n; ++i) {
          const float value = kind == Kind::no_gradient         ? 0
                              : kind == Kind::bad && i == n / 2 ? INFINITY
                                                                : 0.01F * numbers.data()[i];
          const uint16_t half = dtype == DType::bf16 ? core::narrow_bf16(value) : core::narrow_f16(value);
          std::memcpy(here.data() + i * width, width == 4 ? static_cast<const void*>(&value) : &half,
                      static_cast<size_t>(width));
          residual.data()[i] *= kind == Kind::tiny    ? 0.0000001F
                                : kind == Kind::small ? 0.01F
                                : kind == Kind::none  ? 0
                                                      : 30;
        }
        std::vector<std::byte> there = here;
        Floats next_here = random_floats(n, 7), next_there = random_floats(n, 7);
        Drained found;
        const auto job = [&](std::vector<std::byte>& gradient, Floats& next) {
          return Drain{.gradient = gradient.data(),
                       .dtype = dtype,
                       .n = n,
                       .residual = residual.data(),
                       .residual_next = next.data()};
        };
        const Drained wanted = drain(job(here, next_here), *host_);
        kernels_->drain(job(there, next_there), found, queue_);
        finish(queue_);
        EXPECT_EQ(wanted.added, found.added);
        EXPECT_EQ(wanted.left, found.left);
        EXPECT_EQ(wanted.share, found.share);
        EXPECT_TRUE(same(here, there)) << n << " " << static_cast<int>(kind);
        EXPECT_TRUE(same(next_here.values(), next_there.values()));
        EXPECT_EQ(wanted.added, kind <= Kind::large);
        if (kind == Kind::tiny) {
          EXPECT_FALSE(wanted.left);
          EXPECT_TRUE(same(next_there.values(), std::vector<float>(static_cast<size_t>(n)))) << "nothing is owed again";
        }
      }
    }
  }
}

TEST_P(StepKernels, DrainsWhatIsParked) {
  for (const int64_t n : {int64_t{5}, int64_t{20'000}}) {
    Floats here = random_floats(n, 5), there = random_floats(n, 5);
    Floats parked_here = random_floats(n, 6), parked_there = random_floats(n, 6);
    Drained found;
    const Drained wanted = drain(
        ParkedDrain{.gradient = here.data(), .n = n, .residual = parked_here.data(), .left_before = 0.7F}, *host_);
    kernels_->drain(ParkedDrain{.gradient = there.data(), .n = n, .residual = parked_there.data(), .left_before = 0.7F},
                    found, queue_);
    finish(queue_);
    finish(queue_);
    EXPECT_TRUE(wanted.added);
    EXPECT_EQ(wanted.share, found.share);
    EXPECT_TRUE(same(here.values(), there.values()));
    EXPECT_TRUE(same(parked_here.values(), parked_there.values()));
  }
}

TEST_P(StepKernels, AddsSquaresOfASample) {
  for (const int64_t n : {int64_t{0}, int64_t{7}, int64_t{2'048}, int64_t{2'049}, int64_t{50'000}}) {
    Floats values = random_floats(n + 10, 8), others = random_floats(n + 10, 9);
    for (const float sign : {0.0F, 1.0F, -1.0F}) {
      double here = 0.25, there = 0.25;
      const auto job = [&](double& to) {
        return RunSquares{.values = values.data(),
                          .others = sign == 0 ? nullptr : others.data(),
                          .sign = sign,
                          .range = {3, n},
                          .step = 12'345,
                          .unit = 9,
                          .to = &to};
      };
      add_squares(job(here));
      kernels_->add_squares(job(there), queue_);
      finish(queue_);
      EXPECT_EQ(here, there) << n;
    }
  }
}

TEST_P(StepKernels, FindsTotals) {
  for (const int64_t n : {int64_t{0}, int64_t{7}, int64_t{256}, int64_t{50'001}}) {
    Floats values = random_floats(n + 1, 8), others = random_floats(n + 1, 9);
    for (const bool has_others : {false, true}) {
      Total here{.sum = 1, .squares = 1}, there = here;
      const auto job = [&](Total& to) {
        return TotalOf{.values = values.data(), .others = has_others ? others.data() : nullptr, .n = n, .to = &to};
      };
      find_total(job(here));
      kernels_->find_total(job(there), queue_);
      finish(queue_);
      EXPECT_EQ(here.sum, there.sum) << n;
      EXPECT_EQ(here.squares, there.squares) << n;
      EXPECT_EQ(n == 0, here.squares == 0);
    }
  }
}

}  // namespace
}  // namespace gradtune::exec
