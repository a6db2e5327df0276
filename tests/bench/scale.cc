// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_scale BUILD_FOLDER OUTPUT.json
//
// Measures how fast gradients are multiplied by 1 / world size in place (engine/compress/simd/scaling.h), which
// every plain sum does first, including that of the baseline. It runs without and with a residual, on one core,
// which is the thread that runs backward, and on all. Values are GB/s of the bytes to read and write. The anchor is
// a stream kernel on the same arrays, in its fastest form, measured in turn with it. Rows "loop" are the plain loop
// that compilers cannot vectorise for every processor, on one core, in the same rounds. The ratio is the median over
// rounds, its spread the quartiles.
// The goal for data outside of the caches is 0.85 of the anchor.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/compress/shared.h"
#include "engine/compress/simd/scaling.h"
#include "engine/core/rng.h"
#include "tests/bench/support/compressor_operations.h"
#include "tests/bench/support/results.h"
#include "tests/bench/support/rounds.h"

namespace gradtune::bench {
namespace {

constexpr int64_t kSizes[] = {1 << 12, 1 << 16, 1 << 20, 1 << 23, 1 << 26};
constexpr int64_t kInNoCache = 1 << 26;
constexpr double kGoal = 0.85;

// The largest exponent tells a NaN or Inf without a branch.
bool plain_loop(const compress::Scaling& job) {
  uint32_t worst = 0;
  for (size_t i = 0; i < job.values.size(); ++i) {
    const float p = job.residual == nullptr ? job.values[i] : job.values[i] + job.residual[i];
    job.values[i] = p * job.factor;
    worst = std::max(worst, std::bit_cast<uint32_t>(job.values[i]) & compress::kInfinityBits);
  }
  if (job.residual_next != nullptr) std::fill_n(job.residual_next, job.values.size(), 0.0F);
  return worst != compress::kInfinityBits;
}

class Bench {
 public:
  Bench() {
    core::Rng rng(1);
    for (int64_t i = 0; i < kInNoCache; ++i) {
      values_.floats()[i] = static_cast<float>(rng.uniform() - 0.5);
      residual_.floats()[i] = values_.floats()[i] / 8;
    }
  }

  void run() {
    const int all = static_cast<int>(std::thread::hardware_concurrency());
    for (const int64_t n : kSizes) {
      for (const bool has_residual : {false, true}) {
        measure(n, has_residual, 1);
        if (all > 1) measure(n, has_residual, all);
      }
    }
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  void measure(int64_t n, bool has_residual, int cores) {
    const auto queue = cores == 1 ? compress::make_serial_queue() : compress::make_arena_queue(cores);
    compress::Scaling job{.values = {values_.floats(), static_cast<size_t>(n)},
                          .factor = 1,  // values are unchanged
                          .verdict = &verdict_};
    // Also in place, but on its own arrays: the bytes that it writes are not numbers to calculate with.
    Stream stream{.reads = {{stream_values_.data(), kGroup * 4}},
                  .writes = {{stream_values_.data(), kGroup * 4}},
                  .groups = n / kGroup};
    if (has_residual) {
      job.residual = residual_.floats();
      job.residual_next = residual_next_.floats();
      job.factor = 0.5F;  // they do not grow
      stream.reads.push_back({stream_residual_.data(), kGroup * 4});
      stream.writes.push_back({stream_next_.data(), kGroup * 4});
    }
    std::vector<std::function<void()>> turns = {[&] { compress::scale(job, *queue); }};
    if (cores == 1) turns.emplace_back([&] { is_finite_ = plain_loop(job) && is_finite_; });
    const size_t streams = turns.size();
    for (const StreamForm& form : kStreamForms) {
      turns.emplace_back([&, form] {
        compress::for_ranges(*queue, stream.groups, compress::task_elements(n) / kGroup,
                             [&](int64_t begin, int64_t end) { run_stream(stream, begin, end, form); });
      });
    }
    const auto times = rounds_of(turns, repeats_of(turns[0]));
    const auto& anchors =
        *std::min_element(times.begin() + static_cast<ptrdiff_t>(streams), times.end(),
                          [](const auto& a, const auto& b) { return quantile(a, 0.5) < quantile(b, 0.5); });
    const std::string where = std::string(has_residual ? " with residual/" : "/") + std::to_string(n) + "/" +
                              (cores == 1 ? "1 core" : std::to_string(cores) + " cores");
    const auto bytes = static_cast<double>(stream.bytes());
    add("scale" + where, times[0], anchors, bytes, n == kInNoCache);
    if (cores == 1) add("loop" + where, times[1], anchors, bytes, false);
  }

  void add(const std::string& name, const std::vector<double>& ours, const std::vector<double>& anchors, double bytes,
           bool has_goal) {
    std::vector<double> ratios;
    for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(anchors[i] / ours[i]);
    const double seconds = quantile(ours, 0.5), ratio = quantile(ratios, 0.5);
    Row row{.name = name,
            .value = bytes / seconds * 1e-9,
            .unit = "GB/s",
            .anchor = bytes / quantile(anchors, 0.5) * 1e-9,
            .ratio = ratio,
            .spread = {quantile(ratios, 0.25), quantile(ratios, 0.75)},
            .ms = seconds * 1e3};
    if (has_goal) {
      row.goal = kGoal;
      row.met = ratio >= kGoal;
    }
    std::printf("%-40s %9.4f ms %6.1f GB/s  %4.2f [%4.2f, %4.2f] of the stream%s\n", name.c_str(), *row.ms, row.value,
                ratio, row.spread[0], row.spread[1], row.met.value_or(true) ? "" : "  MISSED");
    std::fflush(stdout);
    rows_.push_back(row);
  }

  Memory values_{kInNoCache * 4}, residual_{kInNoCache * 4}, residual_next_{kInNoCache * 4};
  Memory stream_values_{kInNoCache * 4}, stream_residual_{kInNoCache * 4}, stream_next_{kInNoCache * 4};
  bool is_finite_ = true;
  compress::Verdict verdict_;
  std::vector<Row> rows_;
};

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  using namespace gradtune;
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_scale BUILD_FOLDER OUTPUT.json\n");
    return 2;
  }
  bench::Bench bench;
  bench.run();
  bench::write_results(argc, argv, bench.rows());
}
