// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests PowerSGD: an orthonormal factor, a projection, sums over ranks that represent sums, a warm start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/compress/calls.h"
#include "engine/compress/powersgd/orthonormal.h"
#include "engine/core/rng.h"
#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {
namespace {

double dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}
double squares(std::span<const float> values) { return dot(values.data(), values.data(), values.size()); }

std::vector<float> random_values(size_t n, uint64_t seed) { return make_data(Data::normal, n, seed); }

// A matrix of that rank, whose singular values fall by half.
std::vector<float> low_rank(size_t rows, size_t columns, size_t rank, uint64_t seed) {
  std::vector<double> sums(rows * columns);
  for (size_t j = 0; j < rank; ++j) {
    const std::vector<float> left = random_values(rows, seed + 2 * j), right = random_values(columns, seed + 2 * j + 1);
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += std::ldexp(double{left[i / columns]} * double{right[i % columns]}, -static_cast<int>(j));
    }
  }
  return {sums.begin(), sums.end()};
}

// One of several ranks, with memory of its own; all elements are one matrix.
class Peer {
 public:
  Peer(const std::string& spec, size_t rows, size_t columns)
      : compressor_(make(spec)),
        matrix_{0, static_cast<int64_t>(rows), static_cast<int64_t>(columns)},
        residuals_{std::vector<float>(rows * columns), std::vector<float>(rows * columns)},
        states_{floats(compressor_->state_bytes(extent())), floats(compressor_->state_bytes(extent()))},
        between_(floats(compressor_->round_bytes(extent()))),
        scratch_(floats(compressor_->scratch_bytes(extent()))),
        average(rows * columns) {}

  void encode(int round, const std::vector<float>& gradient, int ranks) {
    sent.resize(static_cast<size_t>(compressor_->payload_bytes(extent(), round)) / 4);
    finite = compress::encode_now(*compressor_,
                                  {.gradient = gradient,
                                   .residual = residuals_[0].data(),
                                   .residual_next = residuals_[1].data(),
                                   .scale = 1.0F / static_cast<float>(ranks),
                                   .error_scale = static_cast<float>(ranks),
                                   .work = work(round),
                                   .payload = std::as_writable_bytes(std::span(sent)),
                                   .scratch = std::as_writable_bytes(std::span(scratch_))},
                                  *queue_) &&
             (round == 0 || finite);
  }
  void decode(int round, const std::vector<float>& sum) {
    const std::span<const std::byte> payloads[] = {std::as_bytes(std::span(sum))};
    compress::decode_now(*compressor_, {.payloads = payloads, .out = average, .work = work(round)}, *queue_).value();
  }
  void settle() {
    if (!finite) return;
    std::swap(residuals_[0], residuals_[1]);
    std::swap(states_[0], states_[1]);
  }

  const std::vector<float>& residual() const { return residuals_[0]; }
  const std::vector<float>& state() const { return states_[0]; }
  const float* p() const { return between_.data(); }

 private:
  static std::vector<float> floats(int64_t bytes) { return std::vector<float>(static_cast<size_t>(bytes) / 4); }
  core::Extent extent() const { return {matrix_.end(), {&matrix_, 1}}; }
  compress::Work work(int round) {
    return {.matrices = {&matrix_, 1},
            .random = {.seed = 5},
            .round = round,
            .round_memory = reinterpret_cast<std::byte*>(between_.data()),
            .state = reinterpret_cast<const std::byte*>(states_[0].data()),
            .state_next = reinterpret_cast<std::byte*>(states_[1].data())};
  }

  std::unique_ptr<compress::Compressor> compressor_;
  std::unique_ptr<compress::HostQueue> queue_ = compress::make_serial_queue();
  core::Matrix matrix_;
  std::array<std::vector<float>, 2> residuals_, states_;
  std::vector<float> between_, scratch_;

 public:
  bool finite = true;
  std::vector<float> sent, average;
};

// A step of all ranks: each round's payloads are summed, and the sum is given to each.
void step(std::vector<Peer>& peers, const std::vector<std::vector<float>>& gradients) {
  for (int round = 0; round < 2; ++round) {
    std::vector<float> sum;
    for (size_t r = 0; r < peers.size(); ++r) {
      peers[r].encode(round, gradients[r], static_cast<int>(peers.size()));
      sum.resize(peers[r].sent.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += peers[r].sent[i];
    }
    for (Peer& peer : peers) peer.decode(round, sum);
  }
  for (Peer& peer : peers) peer.settle();
}

std::vector<Peer> make_peers(size_t count, const std::string& spec, size_t rows, size_t columns) {
  std::vector<Peer> peers;
  for (size_t r = 0; r < count; ++r) peers.emplace_back(spec, rows, columns);
  return peers;
}

TEST(Orthonormalise, GivesAnOrthonormalBasis) {
  const auto serial = compress::make_serial_queue(), threads = compress::make_arena_queue(4);
  const std::pair<size_t, size_t> sizes[] = {{301, 1}, {301, 2}, {301, 7}, {301, 64}, {8192 * 3 + 17, 5}, {600011, 3}};
  for (const auto& [rows, count] : sizes) {
    std::vector<float> columns = random_values(count * rows, count);
    if (count > 1) {  // nearly alike
      for (size_t i = 0; i < rows; ++i) columns[rows + i] = columns[i] + 1e-3F * columns[rows + i];
    }
    std::vector<float> same = columns;
    std::vector<double> products(
        static_cast<size_t>(compress::product_numbers(static_cast<int64_t>(rows), static_cast<int64_t>(count))));
    compress::orthonormalise(columns.data(), rows, count, products.data(), *serial);
    for (size_t j = 0; j < count; ++j) {
      for (size_t k = 0; k <= j; ++k) {
        EXPECT_NEAR(dot(&columns[j * rows], &columns[k * rows], rows), j == k ? 1 : 0, 3e-7) << j << ", " << k;
      }
    }
    compress::orthonormalise(same.data(), rows, count, products.data(), *threads);
    EXPECT_TRUE(same_bytes(same, columns)) << rows;
  }
}

// Columns of very different lengths, of which a share of 1e-5 is new; a millionth would be too little.
TEST(Orthonormalise, KeepsWhatIsNewInColumnsThatAreNearlyAlike) {
  constexpr size_t kRows = 5000, kCount = 16;
  std::vector<float> columns = random_values(kCount * kRows, 3);
  for (size_t j = 1; j < kCount; ++j) {
    for (size_t i = 0; i < kRows; ++i) columns[j * kRows + i] = columns[i] + 1e-5F * columns[j * kRows + i];
  }
  for (size_t j = 0; j < kCount; ++j) {
    const float length = std::ldexp(1.0F, static_cast<int>(j % 2 == 0 ? 4 * j : 0) - 20);
    for (size_t i = 0; i < kRows; ++i) columns[j * kRows + i] *= length;
  }
  const std::vector<float> given = columns;
  std::vector<double> products(static_cast<size_t>(compress::product_numbers(kRows, kCount)));
  compress::orthonormalise(columns.data(), kRows, kCount, products.data(), *compress::make_serial_queue());
  for (size_t j = 0; j < kCount; ++j) {
    const float* const column = &given[j * kRows];
    double spanned = 0;
    for (size_t k = 0; k < kCount; ++k) {
      EXPECT_NEAR(dot(&columns[j * kRows], &columns[k * kRows], kRows), j == k ? 1 : 0, 3e-7) << j << ", " << k;
      spanned += std::pow(dot(&columns[k * kRows], column, kRows), 2);
    }
    EXPECT_NEAR(spanned / dot(column, column, kRows), 1, 1e-6) << j;
  }
}

TEST(Orthonormalise, WhatWasSpannedBeforeOrIsNotFiniteBecomesZero) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> columns = {3, 4, 0, 6, 8, 0, 0, 0, 0, kNan, 1, 1, 0, 0, 1e-40F};
  double products[compress::product_numbers(3, 5)];
  compress::orthonormalise(columns.data(), 3, 5, products, *compress::make_serial_queue());
  EXPECT_THAT(std::span(columns).first(12),
              testing::Pointwise(testing::FloatEq(), {0.6F, 0.8F, 0.F, 0.F, 0.F, 0.F, 0.F, 0.F, 0.F, 0.F, 0.F, 0.F}));
  EXPECT_FLOAT_EQ(columns[14], 1);
}

TEST(PowerSgd, SendsBothFactorsAndWhatIsNoMatrix) {
  const auto compressor = make("powersgd:3");
  const core::Matrix matrices[] = {{5, 100, 30}, {3005, 4, 2}};  // the second matrix is sent uncompressed
  const core::Extent extent{3100, matrices};
  EXPECT_EQ(compressor->payload_bytes(extent, 0), 4 * 3 * 100);
  EXPECT_EQ(compressor->payload_bytes(extent, 1), 4 * (3 * 30 + 100));
  EXPECT_EQ(compressor->state_bytes(extent), 4 * 3 * 30);
  EXPECT_EQ(compressor->payload_bytes(3100, 0), 0);
  EXPECT_EQ(compressor->payload_bytes(3100, 1), 4 * 3100);
}

TEST(PowerSgd, IsAProjectionOntoOrthonormalColumns) {
  for (const auto& [rows, columns] : {std::pair<size_t, size_t>{64, 48}, {700, 33}, {40, 3000}, {3000, 40}}) {
    std::vector<Peer> peers = make_peers(1, "powersgd:4", rows, columns);
    const std::vector<float> m = random_values(rows * columns, rows);
    step(peers, {m});
    const Peer& peer = peers[0];
    for (size_t j = 0; j < 4; ++j) {
      for (size_t k = 0; k <= j; ++k) {
        EXPECT_NEAR(dot(peer.p() + j * rows, peer.p() + k * rows, rows), j == k ? 1 : 0, 3e-7);
      }
    }
    // ||M - P P^T M||^2 = ||M||^2 - ||P^T M||^2, and the state is M^T P.
    EXPECT_NEAR(squares(peer.residual()), squares(m) - squares(peer.state()), 1e-5 * squares(m));
    EXPECT_NEAR(squares(peer.residual()) + squares(peer.average), squares(m), 1e-5 * squares(m));
  }
}

TEST(PowerSgd, ReproducesWhatHasItsRank) {
  for (size_t rank : {1, 3, 8}) {
    std::vector<Peer> peers = make_peers(2, "powersgd:" + std::to_string(rank), 90, 70);
    const std::vector<float> a = low_rank(90, 70, rank, 3);
    std::vector<float> b = a;
    for (float& value : b) value *= 3;
    step(peers, {a, b});
    std::vector<float> missed = a;
    for (size_t i = 0; i < a.size(); ++i) missed[i] = 2 * a[i] - peers[0].average[i];
    EXPECT_LE(std::sqrt(squares(missed)), 2e-5 * std::sqrt(squares(a))) << rank;
  }
}

// With one P, the average of decoded payloads is the decoded average, and all ranks have the same bits.
TEST(PowerSgd, AddsUpOverRanksAndLosesNothing) {
  constexpr size_t kRanks = 3, kRows = 80, kColumns = 120, kSteps = 20;
  std::vector<Peer> peers = make_peers(kRanks, "powersgd:2", kRows, kColumns);
  std::vector<double> given(kRows * kColumns), applied(kRows * kColumns);
  for (uint64_t s = 0; s < kSteps; ++s) {
    std::vector<std::vector<float>> gradients;
    for (size_t r = 0; r < kRanks; ++r) gradients.push_back(random_values(kRows * kColumns, 100 * s + r));
    step(peers, gradients);
    for (size_t i = 0; i < given.size(); ++i) {
      for (const std::vector<float>& gradient : gradients) given[i] += double{gradient[i]};
      applied[i] += kRanks * double{peers[0].average[i]};
    }
    for (const Peer& peer : peers) {
      EXPECT_TRUE(same_bytes(peer.average, peers[0].average));
      EXPECT_TRUE(same_bytes(peer.state(), peers[0].state()));
    }
  }
  double difference = 0, total = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    double kept = 0;
    for (const Peer& peer : peers) kept += double{peer.residual()[i]};
    difference += std::pow(applied[i] + kept - given[i], 2);
    total += given[i] * given[i];
  }
  EXPECT_LE(std::sqrt(difference), 1e-6 * kSteps * std::sqrt(total));
}

// Over the steps it approaches the best approximation of that rank.
TEST(PowerSgd, AWarmStartFindsTheLargestDirections) {
  std::vector<Peer> peers = make_peers(1, "powersgd:2", 100, 100);
  const std::vector<float> m = low_rank(100, 100, 12, 7);
  std::vector<double> missed;
  for (int s = 0; s < 30; ++s) {
    std::vector<float> gradient = m;  // minus the residual, which would be sent as well
    for (size_t i = 0; i < m.size(); ++i) gradient[i] -= peers[0].residual()[i];
    step(peers, {gradient});
    missed.push_back(squares(peers[0].residual()));
  }
  EXPECT_LT(missed.back(), 0.95 * missed.front());
  for (size_t s = 1; s < missed.size(); ++s) EXPECT_LE(missed[s], missed[s - 1] * (1 + 1e-4)) << s;
}

TEST(PowerSgd, AfterZerosColumnsAreDrawnAnew) {
  std::vector<Peer> peers = make_peers(1, "powersgd:2", 30, 20);
  const std::vector<float> zeros(600), m = low_rank(30, 20, 2, 9);
  step(peers, {zeros});
  EXPECT_THAT(peers[0].average, testing::Each(0.0F));
  EXPECT_THAT(peers[0].state(), testing::Each(0.0F));
  step(peers, {m});
  EXPECT_LE(squares(peers[0].residual()), 1e-9 * squares(m));
}

TEST(PowerSgd, AStepThatIsNotFiniteLeavesNoTrace) {
  std::vector<Peer> peers = make_peers(1, "powersgd:2", 30, 20);
  step(peers, {random_values(600, 1)});
  const std::vector<float> residual = peers[0].residual(), state = peers[0].state();
  std::vector<float> bad = random_values(600, 2);
  bad[77] = std::numeric_limits<float>::infinity();
  step(peers, {bad});
  EXPECT_FALSE(peers[0].finite);
  EXPECT_EQ(peers[0].residual(), residual);
  EXPECT_EQ(peers[0].state(), state);
}

}  // namespace
}  // namespace gradtune::suites
