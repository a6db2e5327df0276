// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages between two ranks over Gloo that take one delay of the link. Gloo's take two, because a sender waits until
// the receiver has announced the message. Here a receiver announces messages before it knows what will come. So they
// arrive, in chunks of one size, in memory of this class, and are copied from there. That pays for messages whose
// bytes take less time than the delay.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "engine/core/result.h"
#include "hooks/c10d/gloo_tags.h"

namespace gradtune {

class EagerMessages {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Deadline = std::chrono::steady_clock::time_point;

  static constexpr int64_t kChunkBytes = int64_t{256} << 10;
  static constexpr int64_t kMostBytes = int64_t{4} << 20;  // of a message, whatever the delay

  explicit EagerMessages(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo) : gloo_(std::move(gloo)) {}

  // The delay of the link in microseconds, the same number on all ranks. Longer messages are taken where it is longer.
  void expect_delay(double us);

  // True if a message of that many bytes goes this way; false for an empty one.
  bool takes(int64_t bytes) const { return bytes > 0 && bytes <= most_bytes_; }

  // --- the receiver: in the order in which that rank reserves messages to this one; from one thread at a time
  struct Arriving {
    std::vector<Work> works;
    std::vector<at::Tensor> chunks;
  };
  Arriving expect(int from, int64_t bytes);

  // Waits for a message and copies it; once, from any thread. An error says that it was aborted; c10d throws at the
  // deadline and if the peer is gone.
  core::Status take(Arriving& arriving, const at::Tensor& into, Deadline deadline);

  // --- the sender: reserves a message from one thread at a time, and sends it from any thread
  struct Reserved {
    int to = 0, first_tag = 0;
  };
  Reserved reserve(int to, int64_t bytes);

  // `used` of the message's bytes have to arrive. The message may be given up once all works have ended.
  std::vector<Work> send(const Reserved& reserved, const at::Tensor& what, int64_t used);

  // Ends the messages that are announced and not expected yet, and refuses later ones. May be called from any thread.
  void abort();

 private:
  struct Announced {
    Work work;
    at::Tensor chunk;
  };
  struct Lane {  // messages from one rank
    int next_tag = tags::kEager.first;
    std::deque<Announced> ahead = {};
  };

  void announce(int from, Lane& lane, size_t ahead);
  at::Tensor free_chunk();

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  int64_t most_bytes_ = kChunkBytes / 4;
  size_t ahead_ = 4;              // chunks announced for each rank that sends here
  std::map<int, int> next_sent_;  // tags, by receiver
  std::mutex mutex_;              // guards the others
  std::map<int, Lane> lanes_;
  std::vector<at::Tensor> free_;
  bool aborted_ = false;
};

}  // namespace gradtune
