// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_compress_device [--compressors topk:0.01,int8] [--sizes 4096,67108864] BUILD_FOLDER OUTPUT.json
//
// Measures the speed of compressors on a CUDA device: encode with error feedback, decode of 1 and of 8 payloads.
// Values are GB/s of the bytes that an operation has to move (core::HostWork). The anchor is a kernel that reads and
// writes as many, in one pass of 16-byte accesses, measured in turn with it. The ratio is the median over rounds,
// its spread the quartiles. Calls follow each other on one stream, so `ms` is the device's time and not that of a
// launch.
//
// Rows "NAME/asking" are the microseconds that the host takes to request an encode of the largest size while the
// device is busy with other work. Such a row is met if the call returned before the device was done.
//
// Rows "cub" are cub::DeviceSelect with the predicate of the largest elements, which has to be known before.
//
// Goals: 0.9 of the anchor at 2^26; 8 us at 2^12.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cub/device/device_select.cuh>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "engine/compress/cuda/device.cuh"
#include "engine/compress/cuda/table.h"
#include "engine/core/clock.h"
#include "engine/core/option.h"
#include "engine/exec/cuda/device.h"
#include "tests/bench/support/results.h"
#include "tests/bench/support/rounds.h"

namespace gradtune::bench {
namespace {

using compress::cuda::must;

constexpr int64_t kSmallest = 1 << 12, kGoalSize = 1 << 26, kLargest = 1 << 28, kColumns = 1024;
constexpr double kGoalShare = 0.9, kGoalSmallestMs = 8e-3;
constexpr int kMostPayloads = 8, kRounds = 15;
constexpr float kCubThreshold = 1.0F;

// --- what the device has ---------------------------------------------------------------------------------------------

class Memory {
 public:
  explicit Memory(int64_t bytes) {
    must(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 16))), "cudaMalloc");
    must(cudaMemset(data_, 0, static_cast<size_t>(std::max<int64_t>(bytes, 16))), "cudaMemset");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
};

// Gradient-like: nearly normal, in layers of very different size.
__global__ void fill_with_numbers(float* out, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t bits = (static_cast<uint64_t>(i) + seed) * 0x9e3779b97f4a7c15U;
    float sum = 0;
    for (int round = 0; round < 4; ++round) {
      bits = (bits ^ bits >> 31) * 0xbf58476d1ce4e5b9U;
      sum += static_cast<float>(bits >> 40) * 0x1p-24F - 0.5F;
    }
    out[i] = sum / static_cast<float>(1 + i / 300000 % 7);
  }
}

// Reads and writes this many units of 16 bytes, divided evenly over the threads.
__global__ void pass_memory(const uint4* in, int64_t reads, uint4* out, int64_t writes, uint4* never) {
  uint4 seen{};
  const int64_t most = reads > writes ? reads : writes;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < most; i += int64_t{gridDim.x} * blockDim.x) {
    if (i < reads) {
      const uint4 unit = __ldcs(in + i);
      seen.x ^= unit.x ^ unit.y ^ unit.z ^ unit.w;
    }
    if (i < writes) __stcs(out + i, make_uint4(static_cast<uint32_t>(i), 1, 2, 3));
  }
  if (seen.x == 0x12345678) *never = seen;  // so that the compiler leaves out no read
}

__global__ void wait_for(int64_t clocks) {
  for (const int64_t begin = clock64(); clock64() - begin < clocks;) {
  }
}

struct IsLarge {
  __device__ bool operator()(float value) const { return fabsf(value) > kCubThreshold; }
};

// --- how it is timed -------------------------------------------------------------------------------------------------

class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    must(cudaEventCreate(&begin_), "cudaEventCreate");
    must(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Milliseconds of one call, from consecutive calls.
  double ms(const std::function<void()>& call, int repeats) const {
    must(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < repeats; ++i) call();
    must(cudaEventRecord(end_, stream_), "cudaEventRecord");
    must(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) / repeats;
  }

  // Milliseconds per call, of both in turn.
  std::vector<std::vector<double>> in_turn(const std::function<void()>& ours,
                                           const std::function<void()>& anchor) const {
    ours();
    anchor();
    const auto repeats_of = [&](const auto& call) { return std::clamp(static_cast<int>(2 / ms(call, 3)), 1, 200); };
    const int repeats[] = {repeats_of(ours), repeats_of(anchor)};
    std::vector<std::vector<double>> times(2);
    for (int round = 0; round < kRounds; ++round) {
      for (const int turn : {round % 2, 1 - round % 2}) {
        times[static_cast<size_t>(turn)].push_back(ms(turn == 0 ? ours : anchor, repeats[turn]));
      }
    }
    return times;
  }

 private:
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// --- what is timed ---------------------------------------------------------------------------------------------------

class Bench {
 public:
  Bench(exec::Device& device, int64_t largest)
      : queue_(compress::device(device.queue(exec::Device::Stream::codec))),
        stream_(static_cast<cudaStream_t>(queue_.stream())),
        timer_(stream_),
        gradient_(largest * 4),
        residual_(largest * 4),
        next_(largest * 4),
        out_(largest * 4),
        anchor_in_(largest * 16),
        anchor_out_(largest * 16),
        verdict_(sizeof(compress::Verdict)) {
    fill_with_numbers<<<1024, 256, 0, stream_>>>(gradient_.floats(), largest, 1);
    fill_with_numbers<<<1024, 256, 0, stream_>>>(residual_.floats(), largest, 77);
    must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  void measure(const core::CompressorSpec& spec, int64_t n, bool is_largest) {
    const auto compressor = std::move(compress::cuda::make_device_compressor(spec)).value();
    const core::CompressorTraits& traits = compressor->traits();
    const core::Matrix matrix{0, n / kColumns, kColumns};
    const core::Extent extent{n, {&matrix, 1}};
    const int last = traits.rounds - 1;
    const Memory scratch(compressor->scratch_bytes(extent)), between(compressor->round_bytes(extent));
    const Memory state(compressor->state_bytes(extent)), state_next(compressor->state_bytes(extent));
    std::vector<std::unique_ptr<Memory>> payloads;
    int64_t largest = 0;
    for (int round = 0; round <= last; ++round) largest = std::max(largest, compressor->payload_bytes(extent, round));
    for (int i = 0; i < kMostPayloads; ++i) payloads.push_back(std::make_unique<Memory>(largest));
    const auto payload = [&](int i, int round) {
      return std::span(payloads[static_cast<size_t>(i)]->data(),
                       static_cast<size_t>(compressor->payload_bytes(extent, round)));
    };
    const auto work = [&](int round) {
      const bool has_state = compressor->state_bytes(extent) > 0;
      return compress::Work{.matrices = extent.matrices,
                            .round = round,
                            .round_memory = between.data(),
                            .state = has_state ? state.data() : nullptr,
                            .state_next = has_state ? state_next.data() : nullptr};
    };
    auto* const verdict = reinterpret_cast<compress::Verdict*>(verdict_.data());
    const auto decode = [&](int count, int round) {
      std::vector<std::span<const std::byte>> spans;
      for (int i = 0; i < count; ++i) spans.emplace_back(payload(i, round));
      compressor->decode(
          {.payloads = spans, .out = {out_.floats(), static_cast<size_t>(n)}, .work = work(round), .verdict = verdict},
          queue_);
    };
    const auto encode = [&](int to) {
      for (int round = 0; round <= last; ++round) {
        compressor->encode({.gradient = {gradient_.floats(), static_cast<size_t>(n)},
                            .residual = residual_.floats(),
                            .residual_next = next_.floats(),
                            .scale = 0.5F,
                            .error_scale = 2,
                            .work = work(round),
                            .payload = payload(to, round),
                            .scratch = {scratch.data(), static_cast<size_t>(compressor->scratch_bytes(extent))},
                            .verdict = verdict},
                           queue_);
        if (round < last) decode(1, round);
      }
    };
    for (int i = 0; i < kMostPayloads; ++i) encode(i);
    const std::string name = core::to_string(spec) + "/", where = "/" + std::to_string(n);
    const core::HostWork& host = traits.host;
    const int64_t sent = compressor->payload_bytes(extent, last), array = 4 * n;
    const auto add_operation = [&](const std::string& operation, int64_t reads, int64_t writes,
                                   const std::function<void()>& call) {
      Row row = row_of(name + operation + where, reads + writes, call, reads, writes);
      if (n == kGoalSize) {
        row.goal = kGoalShare;
        row.met = row.ratio >= kGoalShare;
      } else if (n == kSmallest && operation != "decode_8") {
        row.goal = kGoalSmallestMs;
        row.met = *row.ms <= kGoalSmallestMs;
      }
      add(row);
    };
    add_operation("encode_feedback", (host.feedback_reads + host.state_arrays) * array,
                  (host.feedback_writes + host.state_arrays) * array + sent, [&] { encode(0); });
    for (const int count : {1, kMostPayloads}) {
      add_operation("decode_" + std::to_string(count), count * sent, array, [&] { decode(count, last); });
    }
    if (is_largest) add(asking_row(name, where, [&] { encode(0); }));
    must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  void measure_cub(int64_t n) {
    const Memory count(sizeof(int64_t));
    size_t bytes = 0;
    const auto select = [&](void* scratch) {
      must(cub::DeviceSelect::If(scratch, bytes, gradient_.floats(), out_.floats(),
                                 reinterpret_cast<int64_t*>(count.data()), n, IsLarge{}, stream_),
           "cub::DeviceSelect");
    };
    select(nullptr);
    const Memory scratch(static_cast<int64_t>(bytes));
    add(row_of(
        "cub/select/" + std::to_string(n), 4 * n, [&] { select(scratch.data()); }, 4 * n, 0));
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  Row row_of(const std::string& name, int64_t bytes, const std::function<void()>& call, int64_t reads, int64_t writes) {
    const auto anchor = [&] {
      const int64_t most = std::max(reads, writes) / 16;
      const auto blocks = static_cast<unsigned>(std::clamp<int64_t>((most + 1023) / 1024, 1, 132 * 16));
      pass_memory<<<blocks, 256, 0, stream_>>>(reinterpret_cast<const uint4*>(anchor_in_.data()), reads / 16,
                                               reinterpret_cast<uint4*>(anchor_out_.data()), writes / 16,
                                               reinterpret_cast<uint4*>(anchor_out_.data()));
    };
    const auto times = timer_.in_turn(call, anchor);
    std::vector<double> ratios;
    for (size_t i = 0; i < times[0].size(); ++i) ratios.push_back(times[1][i] / times[0][i]);
    const auto gb_per_s = [&](const std::vector<double>& ms) {
      return static_cast<double>(bytes) / quantile(ms, 0.5) * 1e-6;
    };
    return {.name = name,
            .value = gb_per_s(times[0]),
            .unit = "GB/s",
            .anchor = gb_per_s(times[1]),
            .ratio = quantile(ratios, 0.5),
            .spread = {quantile(ratios, 0.25), quantile(ratios, 0.75)},
            .ms = quantile(times[0], 0.5)};
  }

  Row asking_row(const std::string& name, const std::string& where, const std::function<void()>& call) {
    const core::SteadyClock clock;
    std::vector<double> us;
    bool came_back = true;
    for (int round = 0; round < kRounds; ++round) {
      wait_for<<<1, 1, 0, stream_>>>(20'000'000);  // 10 ms and more
      const int64_t begin_ns = clock.now_ns();
      call();
      us.push_back(static_cast<double>(clock.now_ns() - begin_ns) * 1e-3);
      came_back = came_back && cudaStreamQuery(stream_) == cudaErrorNotReady;
      must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }
    return {.name = name + "asking" + where,
            .value = quantile(us, 0.5),
            .unit = "us",
            .spread = {quantile(us, 0.25), quantile(us, 0.75)},
            .met = came_back};
  }

  void add(const Row& row) {
    rows_.push_back(row);
    std::printf("%-48s %10.4f ms %8.1f %-4s  %4.2f [%4.2f, %4.2f]%s\n", row.name.c_str(), row.ms.value_or(0), row.value,
                row.unit.c_str(), row.ratio, row.spread[0], row.spread[1], row.met.value_or(true) ? "" : "  MISSED");
    std::fflush(stdout);
  }

  compress::DeviceQueue& queue_;
  const cudaStream_t stream_;
  const Timer timer_;
  const Memory gradient_, residual_, next_, out_, anchor_in_, anchor_out_, verdict_;
  std::vector<Row> rows_;
};

int run(int argc, char** argv) {
  std::vector<core::CompressorSpec> specs;
  std::vector<int64_t> sizes = {kSmallest, 1 << 16, 1 << 20, 1 << 24, kGoalSize, kLargest};
  for (int i = 1; i + 3 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--compressors") {
      specs = core::parse_compressors(argv[i + 1], compress::known_traits()).value();
    } else if (flag == "--sizes") {
      sizes.clear();
      std::istringstream numbers(argv[i + 1]);
      for (std::string number; std::getline(numbers, number, ',');) sizes.push_back(std::stoll(number));
    } else {
      std::fprintf(stderr, "unknown flag %s; there are --compressors and --sizes\n", flag.c_str());
      return 2;
    }
  }
  if (specs.empty()) {
    for (const auto& row : compress::cuda::device_table()) {
      specs.push_back(core::parse_compressor(row.name, compress::known_traits()).value());
    }
  }
  const core::SteadyClock clock;
  const auto device = std::move(exec::cuda::make_cuda_device({.times_every = 0}, clock)).value();
  const int64_t largest = *std::ranges::max_element(sizes);
  Bench bench(*device, largest);
  for (const core::CompressorSpec& spec : specs) {
    for (const int64_t n : sizes) bench.measure(spec, n, n == largest);
  }
  for (const int64_t n : sizes) bench.measure_cub(n);
  write_results(argc, argv, bench.rows());
  return 0;
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) { return gradtune::bench::run_benchmark(argc, argv, gradtune::bench::run); }
