// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/eager_messages.h"

#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "hooks/c10d/gloo_exchange.h"

namespace gradtune {
namespace {

// A copy moves more than that, so it takes less time than the delay that it saves.
constexpr double kCopiedBytesPerUs = 1000;

int64_t chunks_of(int64_t bytes) { return (bytes + EagerMessages::kChunkBytes - 1) / EagerMessages::kChunkBytes; }

}  // namespace

void EagerMessages::expect_delay(double us) {
  most_bytes_ = std::clamp(static_cast<int64_t>(us * kCopiedBytesPerUs), most_bytes_, kMostBytes);
  // Twice the longest message from one rank; all ranks that send here share four times that.
  const auto longest = static_cast<size_t>(chunks_of(most_bytes_));
  const auto peers = static_cast<size_t>(std::max(gloo_->getSize() - 1, 1));
  ahead_ = std::max(ahead_, std::min(2 * longest, 8 * longest / peers));
}

EagerMessages::Arriving EagerMessages::expect(int from, int64_t bytes) {
  const auto chunks = static_cast<size_t>(chunks_of(bytes));
  const std::lock_guard lock(mutex_);
  if (aborted_) throw std::runtime_error("the exchange was aborted");
  Lane& lane = lanes_[from];
  announce(from, lane, chunks + ahead_);
  Arriving arriving;
  for (size_t c = 0; c < chunks; ++c) {
    arriving.works.push_back(std::move(lane.ahead.front().work));
    arriving.chunks.push_back(std::move(lane.ahead.front().chunk));
    lane.ahead.pop_front();
  }
  return arriving;
}

void EagerMessages::announce(int from, Lane& lane, size_t ahead) {
  while (lane.ahead.size() < ahead) {
    at::Tensor chunk = free_chunk();
    std::vector<at::Tensor> tensors{chunk};
    Work work = gloo_->recv(tensors, from, lane.next_tag);
    lane.next_tag = tags::kEager.after(lane.next_tag, 1);
    lane.ahead.push_back({std::move(work), std::move(chunk)});
  }
}

at::Tensor EagerMessages::free_chunk() {
  if (free_.empty()) return at::empty({kChunkBytes}, at::kByte);
  at::Tensor chunk = std::move(free_.back());
  free_.pop_back();
  return chunk;
}

core::Status EagerMessages::take(Arriving& arriving, const at::Tensor& into, Deadline deadline) {
  auto* to = static_cast<std::byte*>(into.mutable_data_ptr());
  auto left = static_cast<int64_t>(into.nbytes());
  for (size_t c = 0; c < arriving.works.size(); ++c) {
    if (core::Status status = await_message(*arriving.works[c], deadline); !status) return status;
    const int64_t bytes = std::min(left, kChunkBytes);
    std::memcpy(to, arriving.chunks[c].const_data_ptr(), static_cast<size_t>(bytes));
    to += bytes;
    left -= bytes;
  }
  const std::lock_guard lock(mutex_);
  for (at::Tensor& chunk : arriving.chunks) free_.push_back(std::move(chunk));
  return {};
}

EagerMessages::Reserved EagerMessages::reserve(int to, int64_t bytes) {
  int& next = next_sent_.try_emplace(to, tags::kEager.first).first->second;
  return {to, std::exchange(next, tags::kEager.after(next, chunks_of(bytes)))};
}

// The receiver has announced all chunks of the message, so each is sent. A chunk beyond the used bytes is one byte.
std::vector<EagerMessages::Work> EagerMessages::send(const Reserved& reserved, const at::Tensor& what, int64_t used) {
  auto* const from = static_cast<std::byte*>(const_cast<void*>(what.const_data_ptr()));
  const auto bytes = static_cast<int64_t>(what.nbytes());
  std::vector<Work> works;
  for (int64_t at = 0; at < bytes; at += kChunkBytes) {
    const int64_t sent = std::clamp(std::min(used, bytes) - at, int64_t{1}, std::min(kChunkBytes, bytes - at));
    std::vector<at::Tensor> tensors{at::from_blob(from + at, {sent}, at::TensorOptions(at::kByte))};
    works.push_back(gloo_->send(tensors, reserved.to, tags::kEager.after(reserved.first_tag, at / kChunkBytes)));
  }
  return works;
}

void EagerMessages::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const auto& [from, lane] : lanes_) {
    for (const Announced& announced : lane.ahead) announced.work->abort();
  }
}

}  // namespace gradtune
