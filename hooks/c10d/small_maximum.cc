// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/small_maximum.h"

#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "hooks/c10d/gloo_exchange.h"
#include "hooks/c10d/gloo_tags.h"

namespace gradtune {
namespace {

constexpr int kRadix = 8;

}  // namespace

SmallMaximum::SmallMaximum(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
    : gloo_(std::move(gloo)), next_tag_(tags::kMaxima.first) {
  const int64_t size = gloo_->getSize();
  for (int64_t span = 1; span < size; span *= kRadix) {
    for (int64_t distance = span; distance < std::min(size, kRadix * span); distance += span) {
      distances_.push_back(static_cast<int>(distance));
    }
  }
}

SmallMaximum::~SmallMaximum() { thread_.waitWorkComplete(); }

void SmallMaximum::start(std::span<double> numbers, std::chrono::milliseconds timeout,
                         std::function<void(core::Status)> done) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  thread_.run([this, numbers, deadline, done = std::move(done)] {
    core::Status status;
    try {
      status = exchange(numbers, deadline);
    } catch (...) {
      status = c10d_error(std::current_exception());
    }
    done(std::move(status));
  });
}

SmallMaximum::Announced SmallMaximum::announce() {
  const int size = gloo_->getSize();
  Announced announced{.tag = next_tag_};
  next_tag_ = tags::kMaxima.after(next_tag_, 1);
  const std::lock_guard lock(mutex_);
  if (aborted_) throw std::runtime_error("the communicator was aborted");
  for (const int distance : distances_) {
    announced.into.push_back(at::empty({kMost}, at::kDouble));
    std::vector<at::Tensor> tensors{announced.into.back()};
    announced.receives.push_back(gloo_->recv(tensors, (gloo_->getRank() + size - distance) % size, announced.tag));
    open_.push_back(announced.receives.back());
  }
  return announced;
}

SmallMaximum::Work SmallMaximum::send(std::span<const double> numbers, int distance, int tag) {
  at::Tensor copy = at::empty({static_cast<int64_t>(numbers.size())}, at::kDouble);  // the message owns it
  std::copy(numbers.begin(), numbers.end(), copy.mutable_data_ptr<double>());
  std::vector<at::Tensor> tensors{copy};
  Work work = gloo_->send(tensors, (gloo_->getRank() + distance) % gloo_->getSize(), tag);
  const std::lock_guard lock(mutex_);
  open_.push_back(work);
  return work;
}

core::Status SmallMaximum::exchange(std::span<double> numbers, Deadline deadline) {
  const Announced current = next_ ? std::move(*std::exchange(next_, std::nullopt)) : announce();
  next_ = announce();
  std::vector<Work> sends;
  for (size_t first = 0; first < distances_.size();) {
    const auto end = std::min(distances_.size(), first + kRadix - 1);
    for (size_t i = first; i < end; ++i) sends.push_back(send(numbers, distances_[i], current.tag));
    for (; first < end; ++first) {
      if (core::Status status = await_message(*current.receives[first], deadline); !status) return status;
      const double* const theirs = current.into[first].const_data_ptr<double>();
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::max(numbers[i], theirs[i]);
    }
  }
  for (const Work& work : sends) {
    if (core::Status status = await_message(*work, deadline); !status) return status;
  }
  const std::lock_guard lock(mutex_);
  open_ = next_->receives;
  return {};
}

void SmallMaximum::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const Work& work : open_) work->abort();
}

}  // namespace gradtune
