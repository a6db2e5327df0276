// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/compressor_operations.h"

#include <algorithm>

#include "engine/compress/calls.h"
#include "engine/core/result.h"

namespace gradtune::bench {
namespace {

constexpr int64_t kArray = 4 * kGroup;  // of fp32

}  // namespace

Memory::Memory(int64_t bytes) {
  const auto whole_lines = static_cast<size_t>((bytes + 63) / 64 * 64);
  memory_.reset(static_cast<std::byte*>(::operator new (whole_lines, std::align_val_t{64})));
  std::fill_n(memory_.get(), whole_lines, std::byte{0});
}

Bucket::Bucket(const compress::Compressor& compressor, int64_t n, const Arrays& arrays)
    : compressor_(compressor),
      n_(n),
      matrix_{0, n / kColumns, kColumns},
      arrays_(arrays),
      payload_bytes_(compressor.payload_bytes(extent(), last())),
      used_bytes_(payload_bytes_),
      scratch_(compressor.scratch_bytes(extent())),
      between_(compressor.round_bytes(extent())),
      state_(compressor.state_bytes(extent())),
      state_next_(compressor.state_bytes(extent())) {
  int64_t largest = n / kGroup * payload_group();
  for (int round = 0; round <= last(); ++round) {
    largest = std::max(largest, compressor.payload_bytes(extent(), round));
  }
  for (int i = 0; i < kMostPayloads + 1; ++i) payloads_.emplace_back(largest);
}

// Rounded to a size that a stream can handle.
int64_t Bucket::payload_group() const {
  const int64_t bytes = used_bytes_ * kGroup / n_, unit = bytes < 512 ? 64 : 512;
  return (bytes + unit / 2) / unit * unit;
}

compress::Work Bucket::work(int round) const {
  const bool has_state = compressor_.state_bytes(extent()) > 0;
  return {.matrices = extent().matrices,
          .row = takes_rows() ? kColumns : 0,
          .round = round,
          .round_memory = between_.data(),
          .state = has_state ? state_.data() : nullptr,
          .state_next = has_state ? state_next_.data() : nullptr};
}

// A round's payload replaces that of the round before, which is not needed any more.
std::span<std::byte> Bucket::payload(const Memory& memory, int round) const {
  return {memory.data(), static_cast<size_t>(compressor_.payload_bytes(extent(), round))};
}

// Between rounds it is the payload that was just encoded.
void Bucket::decode(int payloads, int round, compress::HostQueue& queue) const {
  std::array<std::span<const std::byte>, kMostPayloads> spans;
  for (int i = 0; i < payloads; ++i) spans[i] = payload(round < last() ? sent() : payloads_[i], round);
  const compress::Decode job{.payloads = std::span(spans).first(payloads),
                             .out = {arrays_.out.floats(), static_cast<size_t>(n_)},
                             .work = work(round)};
  compress::decode_now(compressor_, job, queue).value();
}

void Bucket::encode(bool feedback, compress::HostQueue& queue) const {
  for (int round = 0; round <= last(); ++round) {
    const compress::Encode job{.gradient = {gradient().floats(), static_cast<size_t>(n_)},
                               .residual = feedback ? arrays_.residual.floats() : nullptr,
                               .residual_next = feedback ? arrays_.residual_next.floats() : nullptr,
                               .scale = 0.5F,
                               .error_scale = 2,
                               .work = work(round),
                               .payload = payload(sent(), round),
                               .scratch = {scratch_.data(), static_cast<size_t>(compressor_.scratch_bytes(extent()))}};
    core::check(compress::encode_now(compressor_, job, queue), "the data is finite");
    if (round < last()) decode(1, round, queue);
  }
}

// Enough steps for a settled state: momentum of sent elements is zero and takes a while to grow again.
void Bucket::prepare(bool feedback, compress::HostQueue& queue) {
  const int64_t state_bytes = compressor_.state_bytes(extent());
  std::fill_n(state_.data(), state_bytes, std::byte{0});
  for (int step = 0; step < (state_bytes > 0 ? 50 : 1); ++step) {
    encode(feedback, queue);
    for (int i = 0; i < kMostPayloads; ++i) std::copy_n(sent().data(), payload_bytes_, payloads_[i].data());
    decode(1, last(), queue);
    std::swap(state_, state_next_);
  }
  if (takes_rows()) used_bytes_ = compressor_.traits().used_bytes(payload(sent(), last()));
}

// For payloads of rows only the used part counts.
double Bucket::bytes(core::HostOperation operation, int payloads) const {
  return core::host_bytes(compressor_.traits(), compressor_.spec(), extent(), operation, payloads) -
         static_cast<double>(payloads * (payload_bytes_ - used_bytes_));
}

Operation Bucket::encode_operation(bool feedback, compress::HostQueue& queue) {
  prepare(feedback, queue);
  const core::HostWork& work = compressor_.traits().host;
  const int64_t groups = n_ / kGroup;
  Stream stream{.groups = groups};
  // Another pass reads another part of data that is already in memory.
  const std::byte* const once[] = {gradient().data(), arrays_.residual.data()};
  const std::byte* const again[] = {arrays_.residual_next.data(), gradient().data()};
  const int reads = feedback ? work.feedback_reads : work.reads, first = feedback ? 2 : 1;
  for (int i = 0; i < reads; ++i) {
    if (i < first) stream.reads.push_back({once[i], kArray});
    if (i >= first) stream.reads.push_back({again[feedback ? (i - first) % 2 : 1], kArray, groups / 2});
  }
  if (feedback) {
    std::byte* const places[] = {arrays_.residual_next.data(), arrays_.out.data()};
    for (int i = 0; i < work.feedback_writes; ++i) stream.writes.push_back({places[i % 2], kArray});
  }
  for (int i = 0; i < work.state_arrays; ++i) {
    stream.reads.push_back({state_.data(), kArray});
    stream.writes.push_back({state_next_.data(), kArray});
  }
  if (payload_group() > 0) stream.writes.push_back({sent().data(), payload_group()});
  const auto operation = feedback ? core::HostOperation::encode_feedback : core::HostOperation::encode;
  return {feedback ? "encode_feedback" : "encode", std::move(stream), bytes(operation, 1),
          [this, feedback, &queue] { encode(feedback, queue); }};
}

Operation Bucket::decode_operation(int payloads, compress::HostQueue& queue) {
  prepare(/*feedback=*/!takes_rows(), queue);
  Stream stream{.writes = {{arrays_.out.data(), kArray}}, .groups = n_ / kGroup};
  for (int i = 0; i < payloads && payload_group() > 0; ++i) {
    stream.reads.push_back({payloads_[i].data(), payload_group()});
  }
  return {"decode_" + std::to_string(payloads), std::move(stream), bytes(core::HostOperation::decode, payloads),
          [this, payloads, &queue] { decode(payloads, last(), queue); }};
}

}  // namespace gradtune::bench
