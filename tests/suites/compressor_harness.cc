// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/suites/compressor_harness.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "engine/compress/calls.h"
#include "engine/core/option.h"
#include "engine/core/rng.h"

namespace gradtune::suites {
namespace {

class ThreadQueue final : public compress::HostQueue {
 public:
  explicit ThreadQueue(int threads) : threads_(threads) {}

  void for_blocks(int64_t blocks, void (*body)(void* context, int64_t block), void* context) override {
    std::atomic<int64_t> next = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < threads_; ++i) {
      threads.emplace_back([&] {
        for (int64_t block = next++; block < blocks; block = next++) body(context, block);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int threads() const override { return threads_; }

 private:
  int threads_;
};

}  // namespace

std::vector<core::Matrix> matrices_among(const compress::Compressor& compressor, size_t n) {
  if (!compressor.traits().needs_matrices) return {};
  std::vector<core::Matrix> matrices;
  auto begin = static_cast<int64_t>(n % 7);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{0, 1}, {9, 17}, {33, 1}, {61, 45}, {0, 700}}) {
    const int64_t left = static_cast<int64_t>(n) - begin;
    const int64_t fits = std::min(left / columns, rows == 0 ? left / 3 / columns : rows);
    if (fits <= 0) continue;
    matrices.push_back({begin, fits, columns});
    begin = matrices.back().end() + 5;
  }
  return matrices;
}

int64_t payload_bytes(const compress::Compressor& compressor, size_t n) {
  const std::vector<core::Matrix> matrices = matrices_among(compressor, n);
  return core::payload_bytes(compressor.traits(), compressor.spec(), {static_cast<int64_t>(n), matrices});
}

namespace {

using Bytes = Guarded<unsigned char>;

std::span<std::byte> writable(Bytes& memory) { return std::as_writable_bytes(memory.span()); }

}  // namespace

Encoded encode(const compress::Compressor& compressor, const EncodeCase& job, compress::HostQueue& queue) {
  const size_t n = job.gradient.size();
  const std::vector<core::Matrix> matrices = matrices_among(compressor, n);
  const core::Extent extent{static_cast<int64_t>(n), matrices};
  Guarded<float> gradient(job.gradient, job.misaligned);
  Guarded<float> residual(job.residual, job.misaligned + job.residual_further);
  Bytes scratch(static_cast<size_t>(compressor.scratch_bytes(extent)), 0, job.fill);
  Bytes between(static_cast<size_t>(compressor.round_bytes(extent)), 0, job.fill);
  Bytes state(std::span(job.state), 0), state_next(job.state.size(), 0, job.fill);
  Guarded<float> next(n, job.misaligned + job.next_further, job.fill), unused(n);
  if (!job.add_to.empty()) std::copy(job.add_to.begin(), job.add_to.end(), next.data());

  Encoded encoded{.finite = true, .payload = {}, .residual_next = {}, .state_next = {}};
  for (int round = 0; round < compressor.traits().rounds; ++round) {
    Bytes payload(static_cast<size_t>(compressor.payload_bytes(extent, round)), 0, job.fill);
    const compress::Work work{.matrices = matrices,
                              .random = job.random,
                              .first_element = job.first_element,
                              .row = job.row,
                              .round = round,
                              .round_memory = writable(between).data(),
                              .state = job.state.empty() ? nullptr : writable(state).data(),
                              .state_next = job.state.empty() ? nullptr : writable(state_next).data()};
    compress::Verdict verdict;
    compressor.encode({.gradient = gradient.span(),
                       .residual = job.residual.empty() ? nullptr : residual.data(),
                       .residual_next = job.keep_error ? next.data() : nullptr,
                       .add_to_residual_next = !job.add_to.empty(),
                       .scale = job.scale,
                       .error_scale = job.error_scale,
                       .summed = job.summed,
                       .work = work,
                       .payload = writable(payload),
                       .scratch = writable(scratch),
                       .verdict = &verdict},
                      queue);
    encoded.finite = encoded.finite && verdict.nonfinite == 0;
    const auto used_bytes = compressor.traits().used_bytes;
    const auto payload_bytes = static_cast<int64_t>(writable(payload).size());
    EXPECT_EQ(verdict.used_bytes, used_bytes == nullptr ? payload_bytes : used_bytes(writable(payload)));
    EXPECT_EQ(verdict.rejected, 0U);
    EXPECT_TRUE(gradient.intact() && residual.intact() && payload.intact() && scratch.intact() && next.intact());
    const std::vector<unsigned char> bytes = payload.values();
    encoded.payload.insert(encoded.payload.end(), bytes.begin(), bytes.end());
    if (compressor.traits().rounds == 1) break;
    const std::span<const std::byte> payloads[] = {writable(payload)};
    EXPECT_TRUE(
        compress::decode_now(compressor, {.payloads = payloads, .out = unused.span(), .work = work}, queue).ok());
  }
  EXPECT_TRUE(between.intact() && state.intact() && state_next.intact());
  EXPECT_TRUE(same_bytes(gradient.span(), job.gradient) && same_bytes(residual.span(), job.residual));
  EXPECT_EQ(state.values(), job.state);
  if (job.keep_error) encoded.residual_next = next.values();
  if (!job.state.empty()) encoded.state_next = state_next.values();
  return encoded;
}

Encoded encode(const compress::Compressor& compressor, const EncodeCase& job) {
  return encode(compressor, job, *compress::make_serial_queue());
}

core::Result<std::vector<float>> decode(const compress::Compressor& compressor, const DecodeCase& job,
                                        compress::HostQueue& queue) {
  const std::vector<core::Matrix> matrices = matrices_among(compressor, job.n);
  const core::Extent extent{static_cast<int64_t>(job.n), matrices};
  Bytes between(static_cast<size_t>(compressor.round_bytes(extent)));
  Guarded<float> out(job.n, job.misaligned);
  if (!job.add_to.empty()) std::copy(job.add_to.begin(), job.add_to.end(), out.data());
  size_t begin = 0;
  const int rounds = compressor.traits().rounds;
  for (int round = 0; round < rounds; ++round) {
    // A payload that is too short or too long shows in the last round.
    const auto bytes = static_cast<size_t>(compressor.payload_bytes(extent, round));
    std::vector<std::unique_ptr<Bytes>> memory;
    std::vector<std::span<const std::byte>> payloads;
    for (const Payload& payload : job.payloads) {
      const std::span<const unsigned char> from(payload);
      const size_t first = std::min(begin, from.size());
      const size_t length = round + 1 == rounds ? from.size() - first : std::min(bytes, from.size() - first);
      memory.push_back(std::make_unique<Bytes>(from.subspan(first, length), 0));
      payloads.push_back(std::as_bytes(memory.back()->span()));
    }
    begin += bytes;
    const core::Status status = compress::decode_now(compressor,
                                                     {.payloads = payloads,
                                                      .out = out.span(),
                                                      .accumulate = !job.add_to.empty(),
                                                      .work = {.matrices = matrices,
                                                               .random = job.random,
                                                               .first_element = job.first_element,
                                                               .row = job.row,
                                                               .round = round,
                                                               .round_memory = writable(between).data()}},
                                                     queue);
    EXPECT_TRUE(out.intact() && between.intact());
    if (!status) return status.error();
  }
  return out.values();
}

DecodeCase decoding_of(const EncodeCase& job, std::vector<Payload> payloads) {
  return {.payloads = std::move(payloads),
          .n = job.gradient.size(),
          .random = job.random,
          .first_element = job.first_element,
          .row = job.row};
}

core::Result<std::vector<float>> decode(const compress::Compressor& compressor, const DecodeCase& job) {
  return decode(compressor, job, *compress::make_serial_queue());
}

std::unique_ptr<compress::Compressor> make(const std::string& spec) {
  const core::CompressorSpec parsed = core::parse_compressor(spec, compress::known_traits()).value();
  return std::move(compress::make_compressor(parsed)).value();
}

namespace {

std::vector<float> draw_data(Data kind, size_t n, uint64_t seed) {
  core::Rng rng(seed);
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const double normal = rng.normal();
    switch (kind) {
      case Data::normal: values[i] = static_cast<float>(normal); break;
      case Data::layered:  // heavy tails, and layers whose gradients differ by orders of magnitude
        values[i] = static_cast<float>(normal * std::exp(2 * rng.normal() - static_cast<double>(i / 1000 % 5)));
        break;
      case Data::sparse: values[i] = rng.below(200) == 0 ? static_cast<float>(normal) : 0.0F; break;
      case Data::ties: values[i] = static_cast<float>(std::round(normal)) / 4; break;
      case Data::constant: values[i] = normal < 0 ? -0.25F : 0.25F; break;
      case Data::zero: values[i] = 0; break;
    }
  }
  return values;
}

}  // namespace

// Drawn once: suites ask for the same values for every compressor of the table, and drawing takes longer than a
// test.
std::vector<float> make_data(Data kind, size_t n, uint64_t seed) {
  constexpr size_t kMostKept = 32 << 20;  // elements
  static std::mutex mutex;
  static std::map<std::tuple<Data, size_t, uint64_t>, std::vector<float>> kept;
  static size_t elements = 0;
  const std::lock_guard lock(mutex);
  const auto found = kept.find({kind, n, seed});
  if (found != kept.end()) return found->second;
  std::vector<float> values = draw_data(kind, n, seed);
  if (elements + n <= kMostKept) {
    elements += n;
    kept[{kind, n, seed}] = values;
  }
  return values;
}

std::vector<float> corrected(const EncodeCase& job) {
  std::vector<float> p = job.gradient;
  for (size_t i = 0; i < job.residual.size(); ++i) p[i] += job.residual[i];
  return p;
}

bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::unique_ptr<compress::HostQueue> make_thread_queue(int threads) { return std::make_unique<ThreadQueue>(threads); }

std::vector<int64_t> simd_targets() {
  std::vector<int64_t> targets;
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1)
    targets.push_back(rest & -rest);
  return targets;
}

std::string target_name(int64_t target) { return hwy::TargetName(target); }

ScopedTarget::ScopedTarget(int64_t target) { hwy::GetChosenTarget().Update(target); }

ScopedTarget::~ScopedTarget() { hwy::GetChosenTarget().DeInit(); }

}  // namespace gradtune::suites
