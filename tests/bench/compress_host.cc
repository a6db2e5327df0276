// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_compress_host [NAME...] BUILD_FOLDER OUTPUT.json
//
// How fast the compressors are on the host (all of them, or those named): encode, encode with error feedback, decode of 1,
// 2 and 8 payloads, on one core and on all. Values are GB/s of the bytes that an operation has to move; the anchor is a
// stream kernel that moves the same mix of reads and writes (the faster one of plain and of streaming stores), measured in
// turn with it. Compressors with state find the one that an encode before has left.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/rng.h"
#include "tests/bench/support/stream_kernels.h"

namespace gradtune::bench {
namespace {

constexpr int64_t kSizes[] = {1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 8550000, 1 << 24, 1 << 26};
constexpr int64_t kLargest = 1 << 26;
constexpr int64_t kColumns = 1024;
// Shares of the anchor, at the largest size on all cores: of most; of those that draw at random; and of those that select
// by two passes, which may take twice as long as two passes have to (16 of 12 bytes).
constexpr double kGoal = 0.85, kRandomGoal = 0.7, kSelectionGoal = 0.5 * 12 / 16;
constexpr double kSecondsPerRow = 0.12, kSecondsPerSample = 50e-6;
constexpr size_t kFewestSamples = 5;

struct Free {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};

// Cache-aligned, and touched, so that no page is made while the clock runs.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    bytes_ = (bytes_ + 63) / 64 * 64;
    memory_.reset(static_cast<std::byte*>(::operator new (bytes_, std::align_val_t{64})));
    std::fill_n(memory_.get(), bytes_, std::byte{0});
  }
  std::byte* data() const { return memory_.get(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.get()); }

 private:
  size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

struct Samples {
  std::vector<double> seconds;

  double quantile(double share) {
    std::sort(seconds.begin(), seconds.end());
    return seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))];
  }
  double median() { return quantile(0.5); }
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of one call, as the mean of `repeats`.
template <typename Call>
double time_of(const Call& call, int repeats) {
  const double start = seconds_now();
  for (int i = 0; i < repeats; ++i) call();
  return (seconds_now() - start) / repeats;
}

struct Operation {
  std::string name;
  Mix mix;
  double more_bytes;  // of an element, besides those of the mix, which is the nearest that there is
  std::function<void()> run;
};

double goal_of(const std::string& name, const std::string& operation) {
  const auto is_any = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* each) { return name == each; });
  };
  if (is_any({"topk", "threshk", "dgc"}) && operation.starts_with("encode")) return kSelectionGoal;
  return is_any({"int8s", "natural", "qsgd", "terngrad", "randk", "thc"}) ? kRandomGoal : kGoal;
}

class Bench {
 public:
  Bench() {
    for (size_t i = 0; i < matrices_.size(); ++i) matrices_[i] = {0, kSizes[i] / kColumns, kColumns};
    // Gradient-like: layers of very different size.
    core::Rng rng(1);
    std::vector<float> normal(1 << 20);
    for (float& value : normal) value = static_cast<float>(rng.normal());
    for (int64_t i = 0; i < kLargest; ++i) {
      const size_t layer = static_cast<size_t>(i) / 300000;
      gradient_.floats()[i] =
          normal[(static_cast<size_t>(i) * 7 + layer) % normal.size()] / static_cast<float>(1 + layer % 7);
      residual_.floats()[i] = normal[(static_cast<size_t>(i) * 3 + layer * 5) % normal.size()];
    }
  }

  // Of all compressors where none is named.
  void run(const std::set<std::string_view>& names) {
    for (const compress::TableRow& row : compress::table()) {
      if (!names.empty() && !names.contains(row.traits.name)) continue;
      const core::CompressorSpec spec{std::string(row.traits.name), row.traits.parameter_default};
      const auto compressor = std::move(compress::make_compressor(spec)).value();
      const int64_t bytes = core::payload_bytes(row.traits, spec, extent_of(kLargest));
      const Memory scratch(compressor->scratch_bytes(extent_of(kLargest))), first(bytes), second(bytes);
      for (int64_t n : kSizes) measure(*compressor, n, scratch, {&first, &second});
    }
  }

  void write(const std::string& path) const {
    std::ofstream(path) << nlohmann::json{{"schema", "gradtune-benchmark-1"}, {"rows", rows_}}.dump(1) << '\n';
  }

 private:
  // A matrix, for compressors that need one.
  core::Extent extent_of(int64_t n) const {
    const auto found = std::find(std::begin(kSizes), std::end(kSizes), n);
    return {n, {&matrices_[static_cast<size_t>(found - std::begin(kSizes))], 1}};
  }

  void measure(const compress::Compressor& compressor, int64_t n, const Memory& scratch,
               std::array<const Memory*, 2> memory) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    for (int threads : {1, cores}) {
      const auto queue = threads == 1 ? compress::make_serial_queue() : compress::make_arena_queue(threads);
      for (const Operation& operation : operations(compressor, n, scratch, memory, *queue)) {
        add_row(operation, compressor, n, threads, *queue);
      }
      if (cores == 1) break;
    }
  }

  std::vector<Operation> operations(const compress::Compressor& compressor, int64_t n, const Memory& scratch,
                                    std::array<const Memory*, 2> memory, compress::Queue& queue) {
    const auto between = std::make_shared<Memory>(compressor.round_bytes(extent_of(n)));
    const int last = compressor.traits().rounds - 1;
    const int64_t state_bytes = compressor.state_bytes(extent_of(n));
    const auto state = std::make_shared<std::array<Memory, 2>>(std::array{Memory(state_bytes), Memory(state_bytes)});
    const auto work = [this, between, n, state, state_bytes](int round) {
      return compress::Work{.matrices = extent_of(n).matrices,
                            .round = round,
                            .round_memory = between->data(),
                            .state = state_bytes == 0 ? nullptr : (*state)[0].data(),
                            .state_next = state_bytes == 0 ? nullptr : (*state)[1].data()};
    };
    // A round's payload is on top of that of the round before, which is not needed any more.
    const auto payload = [this, &compressor, n](const Memory* of, int round) {
      return std::span(of->data(), static_cast<size_t>(compressor.payload_bytes(extent_of(n), round)));
    };
    const auto decode = [=, this, &compressor, &queue](size_t payloads, int round) {
      std::array<std::span<const std::byte>, 8> spans;
      for (size_t i = 0; i < spans.size(); ++i) spans[i] = payload(memory[i % 2], round);
      const compress::Decode job{.payloads = std::span(spans).first(payloads),
                                 .out = {out_.floats(), static_cast<size_t>(n)},
                                 .work = work(round)};
      compressor.decode(job, queue).value();
    };
    const auto encode = [=, this, &compressor, &queue, &scratch](bool feedback) {
      for (int round = 0; round <= last; ++round) {
        const compress::Encode job{
            .gradient = {gradient_.floats(), static_cast<size_t>(n)},
            .residual = feedback ? residual_.floats() : nullptr,
            .residual_next = feedback ? residual_next_.floats() : nullptr,
            .scale = 0.5F,
            .error_scale = 2,
            .work = work(round),
            .payload = payload(memory[feedback ? 1 : 0], round),
            .scratch = {scratch.data(), static_cast<size_t>(compressor.scratch_bytes(extent_of(n)))}};
        core::check(compressor.encode(job, queue), "the data is finite");
        if (round < last) decode(1, round);
      }
    };
    if (state_bytes > 0) {
      encode(true);
      decode(1, last);
      std::swap((*state)[0], (*state)[1]);
    }
    // Whole bytes of an element: what is less is small against the rest.
    const auto width = static_cast<int>(
        std::lround(static_cast<double>(compressor.payload_bytes(extent_of(kLargest), last)) / kLargest));
    const double of_state = 2.0 * static_cast<double>(state_bytes) / static_cast<double>(n);  // read and written
    const Mix eight = width > 0 ? Mix{{4, 4}, {4, 0}} : Mix{{1, 0}, {4, 0}};
    return {
        {"encode", {{4, 0}, {width, 0}}, of_state, [=] { encode(false); }},
        {"encode_feedback", width > 0 ? Mix{{4, 4}, {width, 4}} : Mix{{4, 4}, {4, 0}}, of_state, [=] { encode(true); }},
        {"decode_1", {{width, 0}, {4, 0}}, 0, [=] { decode(1, last); }},
        {"decode_2", {{width, width}, {4, 0}}, 0, [=] { decode(2, last); }},
        {"decode_8", eight, width > 0 ? 8.0 * width - 8 : 0, [=] { decode(8, last); }}};
  }

  void add_row(const Operation& operation, const compress::Compressor& compressor, int64_t n, int threads,
               compress::Queue& queue) {
    const Arrays arrays{{gradient_.data(), residual_.data()}, {out_.data(), residual_next_.data()}};
    const auto stream = [&](bool streamed) {
      constexpr int64_t kStep = 8192;
      compress::for_blocks(queue, (n + kStep - 1) / kStep, [&](int64_t block) {
        const int64_t end = std::min(n / 64 * 64, (block + 1) * kStep);
        run_stream(operation.mix, arrays, static_cast<size_t>(block * kStep), static_cast<size_t>(end), streamed);
      });
    };
    operation.run();
    const int repeats = std::max(1, static_cast<int>(kSecondsPerSample / time_of(operation.run, 1)));
    Samples ours, plain, streamed;
    for (const double end = seconds_now() + kSecondsPerRow;
         ours.seconds.size() < kFewestSamples || seconds_now() < end;) {
      ours.seconds.push_back(time_of(operation.run, repeats));
      plain.seconds.push_back(time_of([&] { stream(false); }, repeats));
      streamed.seconds.push_back(time_of([&] { stream(true); }, repeats));
    }
    const double of_mix =
        operation.mix.read[0] + operation.mix.read[1] + operation.mix.write[0] + operation.mix.write[1];
    const double bytes = static_cast<double>(n) * (of_mix + operation.more_bytes);
    const double streamed_bytes = static_cast<double>(n) * of_mix;
    const double median = ours.median(), anchor = std::min(plain.median(), streamed.median());
    const double ratio = (bytes / median) / (streamed_bytes / anchor);
    const double spread = (ours.quantile(0.75) - ours.quantile(0.25)) / median;
    const std::string name = core::to_string(compressor.spec()) + "/" + operation.name + "/" + std::to_string(n) + "/" +
                             (threads == 1 ? "1 core" : std::to_string(threads) + " cores");
    nlohmann::json row{{"name", name},     {"value", bytes / median * 1e-9},
                       {"unit", "GB/s"},   {"anchor", streamed_bytes / anchor * 1e-9},
                       {"ratio", ratio},   {"ms", median * 1e3},
                       {"spread", spread}, {"goal", nullptr},
                       {"met", nullptr}};
    if (n == kLargest && threads > 1) {
      row["goal"] = goal_of(compressor.spec().name, operation.name);
      row["met"] = ratio >= row["goal"];
    }
    rows_.push_back(row);
    std::printf("%-50s %9.4f ms %6.1f GB/s  %4.2f of the stream\n", name.c_str(), median * 1e3, bytes / median * 1e-9,
                ratio);
    std::fflush(stdout);
  }

  std::array<core::Matrix, std::size(kSizes)> matrices_;
  Memory gradient_{kLargest * 4}, residual_{kLargest * 4}, residual_next_{kLargest * 4}, out_{kLargest * 4};
  std::vector<nlohmann::json> rows_;
};

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_compress_host [NAME...] BUILD_FOLDER OUTPUT.json\n");
    return 2;
  }
  gradtune::bench::Bench bench;
  bench.run({argv + 1, argv + argc - 2});
  bench.write(argv[argc - 1]);
}
