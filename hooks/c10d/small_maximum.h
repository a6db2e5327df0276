// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The maxima of a few numbers over all ranks, over Gloo's messages, for links whose delay counts. Gloo's all-reduce
// goes around a ring twice, and each of its messages takes two delays of the link, because the receiver announces it
// first. Here a rank sends its numbers to the next seven ranks at once. With more than eight ranks, it then sends the
// maxima so far to ranks at eight times the distance, and so on (the dissemination algorithm, in which a maximum may
// be counted twice). The receives of the next maxima are announced before anything is sent. So a step's maxima take
// one delay up to eight ranks, and one more for each factor of eight.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/thread_pool.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/result.h"

namespace gradtune {

class SmallMaximum {
 public:
  static constexpr int64_t kMost = 64;  // numbers

  // Between at least two ranks.
  explicit SmallMaximum(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo);
  ~SmallMaximum();  // blocks until none is under way

  // Replaces the numbers with the maxima over ranks; all ranks give equally many, in the same order of calls. `done`
  // runs at the end, on another thread, and must not throw. If start() throws, it does not run.
  void start(std::span<double> numbers, std::chrono::milliseconds timeout, std::function<void(core::Status)> done);

  // Ends those under way, and all later ones, with an error. May be called from any thread.
  void abort();

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Deadline = std::chrono::steady_clock::time_point;
  struct Announced {
    int tag = 0;
    std::vector<at::Tensor> into = {};  // one for each of distances_
    std::vector<Work> receives = {};
  };

  Announced announce();
  core::Status exchange(std::span<double> numbers, Deadline deadline);
  Work send(std::span<const double> numbers, int distance, int tag);

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::vector<int> distances_;  // of ranks that this one sends to, in the order of rounds
  int next_tag_;
  std::optional<Announced> next_;  // the receives of the next call
  std::mutex mutex_;               // guards the next two
  std::vector<Work> open_;         // for abort()
  bool aborted_ = false;
  c10::ThreadPool thread_{1};
};

}  // namespace gradtune
