// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/suites/compressor_harness.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "engine/core/option.h"
#include "engine/core/rng.h"

namespace gradtune::suites {
namespace {

class ThreadQueue final : public compress::Queue {
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

Encoded encode(const compress::Compressor& compressor, const EncodeCase& job, compress::Queue& queue) {
  const size_t n = job.gradient.size();
  const auto bytes = static_cast<size_t>(compressor.payload_bytes(static_cast<int64_t>(n)));
  const auto scratch_bytes = static_cast<size_t>(compressor.scratch_bytes(static_cast<int64_t>(n)));
  Guarded<float> gradient(job.gradient, job.misaligned);
  Guarded<float> residual(job.residual, job.misaligned);
  Guarded<unsigned char> payload(bytes, 0, job.fill);
  Guarded<unsigned char> scratch(scratch_bytes, 0, job.fill);
  Guarded<float> next(n, job.misaligned, job.fill);
  if (!job.add_to.empty()) std::copy(job.add_to.begin(), job.add_to.end(), next.data());

  Encoded encoded;
  encoded.finite = compressor.encode({.gradient = gradient.span(),
                                      .residual = job.residual.empty() ? nullptr : residual.data(),
                                      .residual_next = job.keep_error ? next.data() : nullptr,
                                      .add_to_residual_next = !job.add_to.empty(),
                                      .scale = job.scale,
                                      .error_scale = job.error_scale,
                                      .random = job.random,
                                      .first_element = job.first_element,
                                      .payload = std::as_writable_bytes(payload.span()),
                                      .scratch = std::as_writable_bytes(scratch.span())},
                                     queue);
  EXPECT_TRUE(gradient.intact() && residual.intact() && payload.intact() && scratch.intact() && next.intact());
  EXPECT_TRUE(same_bytes(gradient.span(), job.gradient) && same_bytes(residual.span(), job.residual));
  encoded.payload = payload.values();
  if (job.keep_error) encoded.residual_next = next.values();
  return encoded;
}

Encoded encode(const compress::Compressor& compressor, const EncodeCase& job) {
  return encode(compressor, job, *compress::make_serial_queue());
}

core::Result<std::vector<float>> decode(const compress::Compressor& compressor, const DecodeCase& job,
                                        compress::Queue& queue) {
  std::vector<std::unique_ptr<Guarded<unsigned char>>> memory;
  std::vector<std::span<const std::byte>> payloads;
  for (const Payload& payload : job.payloads) {
    memory.push_back(std::make_unique<Guarded<unsigned char>>(std::span(payload), 0));
    payloads.push_back(std::as_bytes(memory.back()->span()));
  }
  Guarded<float> out(job.n, job.misaligned);
  if (!job.add_to.empty()) std::copy(job.add_to.begin(), job.add_to.end(), out.data());
  const core::Status status = compressor.decode(payloads, out.span(), !job.add_to.empty(), queue);
  EXPECT_TRUE(out.intact());
  for (size_t i = 0; i < memory.size(); ++i) EXPECT_EQ(memory[i]->values(), job.payloads[i]);
  if (!status) return status.error();
  return out.values();
}

core::Result<std::vector<float>> decode(const compress::Compressor& compressor, const DecodeCase& job) {
  return decode(compressor, job, *compress::make_serial_queue());
}

std::unique_ptr<compress::Compressor> make(const std::string& spec) {
  const core::CompressorSpec parsed = core::parse_compressor(spec, compress::known_traits()).value();
  return std::move(compress::make_compressor(parsed)).value();
}

std::vector<float> make_data(Data kind, size_t n, uint64_t seed) {
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

std::vector<float> corrected(const EncodeCase& job) {
  std::vector<float> p = job.gradient;
  for (size_t i = 0; i < job.residual.size(); ++i) p[i] += job.residual[i];
  return p;
}

bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::unique_ptr<compress::Queue> make_thread_queue(int threads) { return std::make_unique<ThreadQueue>(threads); }

std::vector<int64_t> simd_targets() {
  std::vector<int64_t> targets;
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) targets.push_back(rest & -rest);
  return targets;
}

std::string target_name(int64_t target) { return hwy::TargetName(target); }

ScopedTarget::ScopedTarget(int64_t target) { hwy::GetChosenTarget().Update(target); }

ScopedTarget::~ScopedTarget() { hwy::GetChosenTarget().DeInit(); }

}  // namespace gradtune::suites
