// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/host_kernels.h"

#include <span>
#include <utility>
#include <vector>

#include "engine/exec/compute.h"
#include "engine/exec/nonfinite.h"

namespace gradtune::exec {
namespace {

// The host's compressor, on the thread of the queue.
class QueuedCompressor final : public compress::Compressor {
 public:
  QueuedCompressor(std::unique_ptr<compress::Compressor> host, const HostKernels& kernels)
      : host_(std::move(host)), kernels_(kernels) {}

  const core::CompressorTraits& traits() const override { return host_->traits(); }
  const core::CompressorSpec& spec() const override { return host_->spec(); }
  Summing summing(int round) const override { return host_->summing(round); }
  int64_t scratch_bytes(const core::Extent& extent) const override { return host_->scratch_bytes(extent); }
  int64_t round_bytes(const core::Extent& extent) const override { return host_->round_bytes(extent); }
  int64_t state_bytes(const core::Extent& extent) const override { return host_->state_bytes(extent); }

  void encode(const compress::Encode& job, compress::Queue& queue) const override {
    kernels_.ask(queue, [this, job] {
      compress::Encode here = job;
      here.gradient = reach(job.gradient);
      here.residual = kernels_.reach(job.residual);
      here.residual_next = kernels_.reach(job.residual_next);
      here.payload = reach(job.payload);
      here.scratch = reach(job.scratch);
      here.verdict = kernels_.reach(job.verdict);
      reach(here.work);
      host_->encode(here, *compress::make_serial_queue());
    });
  }

  void decode(const compress::Decode& job, compress::Queue& queue) const override {
    std::vector<std::span<const std::byte>> payloads(job.payloads.begin(), job.payloads.end());
    kernels_.ask(queue, [this, job, payloads = std::move(payloads)]() mutable {
      compress::Decode here = job;
      for (std::span<const std::byte>& payload : payloads) payload = reach(payload);
      here.payloads = payloads;
      here.out = reach(job.out);
      here.verdict = kernels_.reach(job.verdict);
      reach(here.work);
      host_->decode(here, *compress::make_serial_queue());
    });
  }

  core::Error defect(const compress::Decode& job, size_t position) const override {
    return host_->defect(job, position);
  }

 private:
  template <typename T>
  std::span<T> reach(std::span<T> values) const {
    return values.empty() ? values : std::span<T>(kernels_.reach(values.data()), values.size());
  }
  void reach(compress::Work& work) const {
    work.round_memory = kernels_.reach(work.round_memory);
    work.state = kernels_.reach(work.state);
    work.state_next = kernels_.reach(work.state_next);
  }

  std::unique_ptr<compress::Compressor> host_;
  const HostKernels& kernels_;
};

}  // namespace

core::Result<std::unique_ptr<compress::Compressor>> HostKernels::make_compressor(
    const core::CompressorSpec& spec) const {
  if (lacks(spec)) return core::Error{core::Error::Code::invalid, "there is no kernel for " + spec.name};
  auto host = compress::make_compressor(spec);
  if (!host) return host.error();
  return std::unique_ptr<compress::Compressor>(std::make_unique<QueuedCompressor>(std::move(host.value()), *this));
}

void HostKernels::scale(const compress::Scaling& job, compress::Queue& queue) {
  ask(queue, [this, job] {
    compress::Scaling here = job;
    here.values = {reach(job.values.data()), job.values.size()};
    here.residual = reach(job.residual);
    here.residual_next = reach(job.residual_next);
    here.verdict = reach(job.verdict);
    compress::scale(here, *compress::make_serial_queue());
  });
}

void HostKernels::scale(const compress::DoubleScaling& job, compress::Queue& queue) {
  ask(queue, [this, job] {
    compress::DoubleScaling here = job;
    here.values = {reach(job.values.data()), job.values.size()};
    here.verdict = reach(job.verdict);
    compress::scale(here, *compress::make_serial_queue());
  });
}

void HostKernels::scale(const NumbersScaling& job, compress::Queue& queue) {
  ask(queue, [this, job] {
    NumbersScaling here = job;
    here.numbers = reach(job.numbers);
    here.verdict = reach(job.verdict);
    const auto codec = compress::make_compressor({job.dtype == core::DType::bf16 ? "bf16" : "fp16"});
    exec::scale(here, *codec.value(), *compress::make_serial_queue());
  });
}

void HostKernels::make_nans_alike(std::byte* numbers, core::DType dtype, int64_t n, compress::Queue& queue) {
  ask(queue, [=, this] { exec::make_nans_alike(reach(numbers), dtype, n); });
}

void HostKernels::drain(const Drain& job, Drained& result, compress::Queue& queue) {
  ask(queue, [this, job, to = &result] {
    Drain here = job;
    here.gradient = reach(job.gradient);
    here.residual = reach(job.residual);
    here.residual_next = reach(job.residual_next);
    *reach(to) = exec::drain(here, *compress::make_serial_queue());
  });
}

void HostKernels::drain(const ParkedDrain& job, Drained& result, compress::Queue& queue) {
  ask(queue, [this, job, to = &result] {
    ParkedDrain here = job;
    here.gradient = reach(job.gradient);
    here.residual = reach(job.residual);
    *reach(to) = exec::drain(here, *compress::make_serial_queue());
  });
}

void HostKernels::add_squares(const RunSquares& job, compress::Queue& queue) {
  ask(queue, [this, job] {
    RunSquares here = job;
    here.values = reach(job.values);
    here.others = reach(job.others);
    here.to = reach(job.to);
    exec::add_squares(here);
  });
}

void HostKernels::find_total(const TotalOf& job, compress::Queue& queue) {
  ask(queue, [this, job] {
    exec::find_total({.values = reach(job.values), .others = reach(job.others), .n = job.n, .to = reach(job.to)});
  });
}

}  // namespace gradtune::exec
