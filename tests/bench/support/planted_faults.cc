// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/planted_faults.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <utility>

#include "engine/compress/compressor.h"

namespace gradtune::compress {

// The linker's names: calls of the name elsewhere come here, and this one is the real function.
core::Result<std::unique_ptr<Compressor>> make_real(const core::CompressorSpec& spec) asm(
    "__real__ZN8gradtune8compress15make_compressorERKNS_4core14CompressorSpecE");
core::Result<std::unique_ptr<Compressor>> make_planted(const core::CompressorSpec& spec) asm(
    "__wrap__ZN8gradtune8compress15make_compressorERKNS_4core14CompressorSpecE");

namespace {

enum class Fault : uint8_t { none, decoder, residual, scale };
std::atomic<Fault> planted = Fault::none;  // for the whole process, as its compressors are

class Failing final : public Compressor {
 public:
  explicit Failing(std::unique_ptr<Compressor> real) : real_(std::move(real)) {}

  const core::CompressorTraits& traits() const override { return real_->traits(); }
  const core::CompressorSpec& spec() const override { return real_->spec(); }
  Summing summing(int round) const override { return real_->summing(round); }
  int64_t scratch_bytes(const core::Extent& extent) const override { return real_->scratch_bytes(extent); }
  int64_t round_bytes(const core::Extent& extent) const override { return real_->round_bytes(extent); }
  int64_t state_bytes(const core::Extent& extent) const override { return real_->state_bytes(extent); }
  const RowCodec* rows() const override { return real_->rows(); }
  core::Error defect(const Decode& job, size_t position) const override { return real_->defect(job, position); }

  void encode(const Encode& job, Queue& queue) const override {
    real_->encode(job, queue);
    const bool is_last = job.work.round + 1 == traits().rounds;
    if (planted == Fault::residual && is_last && job.residual_next != nullptr) {
      std::fill_n(job.residual_next, job.gradient.size(), 0.0F);
    }
  }

  void decode(const Decode& job, Queue& queue) const override {
    real_->decode(job, queue);
    if (job.work.round + 1 < traits().rounds) return;
    if (planted == Fault::decoder) std::shift_right(job.out.begin(), job.out.end(), 1);
    if (planted == Fault::scale && job.out.size() >= 128) {
      for (float& value : job.out.subspan(64, 64)) value *= 2;
    }
  }

 private:
  std::unique_ptr<Compressor> real_;
};

}  // namespace

core::Result<std::unique_ptr<Compressor>> make_planted(const core::CompressorSpec& spec) {
  auto real = make_real(spec);
  if (!real || real.value()->traits().fidelity != core::Fidelity::lossy) return real;
  return std::unique_ptr<Compressor>(std::make_unique<Failing>(std::move(real).value()));
}

}  // namespace gradtune::compress

namespace gradtune::bench {

void plant(const std::string& fault) {
  using compress::Fault;
  for (const auto& [name, kind] :
       {std::pair{"decoder", Fault::decoder}, {"residual", Fault::residual}, {"scale", Fault::scale}}) {
    if (fault == name) {
      compress::planted = kind;
      return;
    }
  }
  throw std::invalid_argument("fault \"" + fault + "\" is none of decoder, residual, scale");
}

}  // namespace gradtune::bench
