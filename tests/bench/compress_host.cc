// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_compress_host [--compressors topk:0.01,int8] [--sizes 4096,67108864] [--operations encode,decode_8]
//                            [--cores 1,2] BUILD_FOLDER OUTPUT.json
//
// Measures the speed of compressors on the host: encode, encode with error feedback, decode of 1, 2 and 8 payloads,
// on one core and on all. Values are GB/s of the bytes that an operation has to move (core::HostWork). The anchor is
// a stream kernel that reads and writes the same arrays (in its fastest form), measured in turn with it, and cut
// into the same tasks. The ratio is the median over rounds, its spread the quartiles. Data that fits into the caches
// is there before the clock runs, for both. Compressors with state find the state of an earlier encode. Encodes that
// round at random have a second row, "draws": their random bits alone, measured in turn with them.
//
// Compressors that leave out zeros get a gradient with one row in eight, and only the used part of their payloads
// counts.
//
// The goals on all cores at 2^26 are a share of the anchor, by the compressor's bottleneck (goal_of). If random bits
// are the bottleneck, the goal is to take at most a tenth longer than these alone. On one core at 2^12 the goal is 3
// us for a compressor with one pass.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/compress/shared.h"
#include "engine/core/option.h"
#include "engine/core/rng.h"
#include "tests/bench/support/compressor_operations.h"
#include "tests/bench/support/draws.h"
#include "tests/bench/support/results.h"
#include "tests/bench/support/rounds.h"

namespace gradtune::bench {
namespace {

constexpr int64_t kSmallest = 1 << 12, kLargest = 1 << 26;
constexpr double kGoalSmallestMs = 3e-3;
constexpr double kGoalOfDraws = 0.9;

// The measurements to take.
struct Plan {
  std::vector<core::CompressorSpec> specs;
  std::vector<int64_t> sizes = {kSmallest, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 8550000, 1 << 24, kLargest};
  std::vector<std::string> operations = {"encode", "encode_feedback", "decode_1", "decode_2", "decode_8"};
  std::vector<int> cores = {1, static_cast<int>(std::thread::hardware_concurrency())};
};

// The share of the anchor.
double goal_of(const core::HostWork& work, const std::string& operation) {
  if (!operation.starts_with("encode")) return 0.85;
  switch (work.limit) {
    case core::HostWork::Limit::memory: return 0.85;
    case core::HostWork::Limit::random: return 0.7;
    case core::HostWork::Limit::selection: return 0.5;  // it takes twice as long as its passes
  }
  return 1;
}

// The number of payloads that an operation decodes; 0 for encodes.
int payloads_of(const std::string& operation) {
  return operation.starts_with("decode_") ? std::stoi(operation.substr(7)) : 0;
}

class Bench {
 public:
  explicit Bench(Plan plan) : plan_(std::move(plan)) {
    // Gradient-like: layers of very different size.
    core::Rng rng(1);
    std::vector<float> normal(1 << 20);
    for (float& value : normal) value = static_cast<float>(rng.normal());
    for (int64_t i = 0; i < kLargest; ++i) {
      const size_t layer = static_cast<size_t>(i) / 300000;
      gradient_.floats()[i] =
          normal[(static_cast<size_t>(i) * 7 + layer) % normal.size()] / static_cast<float>(1 + layer % 7);
      if (i / Bucket::kColumns % 8 == 0) sparse_.floats()[i] = gradient_.floats()[i];
      residual_.floats()[i] = normal[(static_cast<size_t>(i) * 3 + layer * 5) % normal.size()];
    }
  }

  void run() {
    for (const core::CompressorSpec& spec : plan_.specs) {
      const auto compressor = std::move(compress::make_compressor(spec)).value();
      for (int64_t n : plan_.sizes) measure(*compressor, n);
    }
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  void measure(const compress::Compressor& compressor, int64_t n) {
    Bucket bucket(compressor, n, {gradient_, sparse_, residual_, residual_next_, out_});
    for (size_t i = 0; i < plan_.cores.size(); ++i) {
      const int cores = plan_.cores[i];
      if (i > 0 && cores == plan_.cores[i - 1]) continue;
      const auto queue = cores == 1 ? compress::make_serial_queue() : compress::make_arena_queue(cores);
      for (const std::string& name : plan_.operations) {
        const int payloads = payloads_of(name);
        add_row(payloads == 0 ? bucket.encode_operation(name == "encode_feedback", *queue)
                              : bucket.decode_operation(payloads, *queue),
                compressor, n, cores, *queue);
      }
    }
  }

  // The speed of an operation that takes turns with the streams, from its times and theirs.
  struct Speed {
    double ms, gb_per_s, ratio, first_quartile, last_quartile;
  };
  static Speed speed_of(const std::vector<double>& ours, const std::vector<double>& anchors, double bytes,
                        double stream_bytes) {
    std::vector<double> ratios;
    for (size_t i = 0; i < ours.size(); ++i) ratios.push_back((bytes / ours[i]) / (stream_bytes / anchors[i]));
    const double median = quantile(ours, 0.5);
    return {median * 1e3, bytes / median * 1e-9, quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75)};
  }

  void add_row(const Operation& operation, const compress::Compressor& compressor, int64_t n, int cores,
               compress::HostQueue& queue) {
    const auto by_steps = [&](const auto& body) {
      const int64_t groups = operation.stream.groups;
      compress::for_ranges(queue, groups, compress::task_elements(n) / kGroup, body);
    };
    operation.run();
    const int repeats = repeats_of(operation.run);
    const core::CompressorTraits& traits = compressor.traits();
    const bool draws = payloads_of(operation.name) == 0 && traits.host.rounds_at_random;
    std::vector<std::function<void()>> turns = {operation.run};
    for (const StreamForm& form : kStreamForms) {
      turns.emplace_back(
          [&, form] { by_steps([&](int64_t begin, int64_t end) { run_stream(operation.stream, begin, end, form); }); });
    }
    if (draws) {
      turns.emplace_back([&] { by_steps([](int64_t begin, int64_t end) { draw(begin * kGroup, end * kGroup); }); });
    }
    const std::vector<std::vector<double>> times = rounds_of(turns, repeats);
    const auto& anchors =
        *std::min_element(times.begin() + 1, times.begin() + 1 + std::size(kStreamForms),
                          [](const auto& a, const auto& b) { return quantile(a, 0.5) < quantile(b, 0.5); });
    const auto stream_bytes = static_cast<double>(operation.stream.bytes());
    const double anchor = stream_bytes / quantile(anchors, 0.5) * 1e-9;
    const Speed speed = speed_of(times[0], anchors, operation.bytes, stream_bytes);
    const std::string spec = core::to_string(compressor.spec()) + "/";
    const std::string where =
        "/" + std::to_string(n) + "/" + (cores == 1 ? "1 core" : std::to_string(cores) + " cores");
    Row row = row_of(spec + operation.name + where, speed, anchor);
    const bool one_pass = traits.rounds == 1 && traits.host.limit != core::HostWork::Limit::selection;
    const Speed alone = speed_of(draws ? times.back() : times[0], anchors, operation.bytes, stream_bytes);
    if (n == kLargest && cores > 1) {
      const double goal = goal_of(traits.host, operation.name);
      row.goal = draws ? std::min(goal, kGoalOfDraws * alone.ratio) : goal;
      row.met = speed.ratio >= *row.goal;
    } else if (n == kSmallest && cores == 1 && one_pass && payloads_of(operation.name) < 2) {
      row.goal = kGoalSmallestMs;  // of ms
      row.met = speed.ms <= kGoalSmallestMs;
    }
    add(row);
    if (draws) add(row_of(spec + operation.name + " draws" + where, alone, anchor));
  }

  static Row row_of(const std::string& name, const Speed& speed, double anchor) {
    return {.name = name,
            .value = speed.gb_per_s,
            .unit = "GB/s",
            .anchor = anchor,
            .ratio = speed.ratio,
            .spread = {speed.first_quartile, speed.last_quartile},
            .ms = speed.ms};
  }

  void add(const Row& row) {
    rows_.push_back(row);
    std::printf("%-52s %9.4f ms %6.1f GB/s  %4.2f [%4.2f, %4.2f] of the stream%s\n", row.name.c_str(), *row.ms,
                row.value, row.ratio, row.spread[0], row.spread[1], row.met.value_or(true) ? "" : "  MISSED");
    std::fflush(stdout);
  }

  Plan plan_;
  Memory gradient_{kLargest * 4}, sparse_{kLargest * 4}, residual_{kLargest * 4}, residual_next_{kLargest * 4},
      out_{kLargest * 4};
  std::vector<Row> rows_;
};

// The words between commas.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

// Reads the command line; nothing if it is not valid.
std::optional<Plan> parse(std::vector<std::string> words) {
  Plan plan;
  if (words.size() < 2 || words.size() % 2 != 0) return {};
  for (size_t i = 0; i + 2 < words.size(); i += 2) {
    const std::vector<std::string> values = split(words[i + 1]);
    const auto numbers = [&](auto& to) {
      to.clear();
      for (const std::string& value : values) to.push_back(std::stoi(value));
    };
    if (words[i] == "--compressors") {
      for (const std::string& value : values) {
        plan.specs.push_back(core::parse_compressor(value, compress::known_traits()).value());
      }
    } else if (words[i] == "--sizes") {
      numbers(plan.sizes);
    } else if (words[i] == "--operations") {
      const std::vector<std::string> known = plan.operations;
      plan.operations = values;
      for (const std::string& value : values) {
        if (std::find(known.begin(), known.end(), value) == known.end()) return {};
      }
    } else if (words[i] == "--cores") {
      numbers(plan.cores);
    } else {
      return {};
    }
  }
  if (!plan.specs.empty()) return plan;
  for (const core::CompressorTraits& traits : compress::known_traits()) {
    plan.specs.push_back({std::string(traits.name), traits.parameter_default});
  }
  plan.specs.push_back({"topk", 0.01});  // it has its own goal
  return plan;
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  using namespace gradtune;
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::optional<bench::Plan> plan = bench::parse(words);
  if (!plan) {
    std::fprintf(stderr,
                 "usage: bench_compress_host [--compressors NAME,...] [--sizes N,...] [--operations NAME,...] "
                 "[--cores N,...] BUILD_FOLDER OUTPUT.json\n");
    return 2;
  }
  bench::Bench bench(*plan);
  bench.run();
  bench::write_results(argc, argv, bench.rows());
}
