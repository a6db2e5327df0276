// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/gloo_exchange.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace gradtune {
namespace {

// Numbers that no two exchanges under way share.
constexpr int kTags = 1 << 30;

}  // namespace

core::Error c10d_error(const std::exception_ptr& exception) {
  std::string message = "unknown failure";
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& caught) {
    message = caught.what();
  } catch (...) {
  }
  message = message.substr(0, message.find('\n'));
  const bool timeout = message.find("imed out") != std::string::npos || message.find("imeout") != std::string::npos;
  return {timeout ? core::Error::Code::timeout : core::Error::Code::lost, message};
}

GlooExchange::GlooExchange(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
    : gloo_(std::move(gloo)), threads_(gloo_->getOptions()->threads) {}

GlooExchange::~GlooExchange() { threads_.waitWorkComplete(); }

void GlooExchange::start(std::vector<Part> parts, std::chrono::milliseconds timeout, std::function<void()> meanwhile,
                         std::function<void(core::Status)> done) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const int tag = std::exchange(next_tag_, (next_tag_ + 1) % kTags);
  const auto works = [this] {
    const std::lock_guard lock(mutex_);
    return works_.emplace(works_.end());
  }();
  const auto forget = [this, works] {
    const std::lock_guard lock(mutex_);
    works_.erase(works);
  };
  try {
    announce(parts, tag, works);
  } catch (...) {
    forget();
    return done(c10d_error(std::current_exception()));
  }
  threads_.run([=, this, parts = std::move(parts), meanwhile = std::move(meanwhile), done = std::move(done)] {
    core::Status status;
    try {
      send(parts, tag, works);
      meanwhile();
      status = wait(*works, deadline);
    } catch (...) {
      status = c10d_error(std::current_exception());
    }
    forget();
    done(std::move(status));
  });
}

void GlooExchange::announce(const std::vector<Part>& parts, int tag, Works::iterator works) {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw std::runtime_error("the exchange was aborted");
  for (const Part& part : parts) {
    std::vector<at::Tensor> tensors{part.received};
    works->push_back(gloo_->recv(tensors, part.peer, tag));
  }
}

void GlooExchange::send(const std::vector<Part>& parts, int tag, Works::iterator works) {
  for (const Part& part : parts) {
    std::vector<at::Tensor> tensors{part.sent};
    c10::intrusive_ptr<c10d::Work> work = gloo_->send(tensors, part.peer, tag);
    const std::lock_guard lock(mutex_);
    works->push_back(std::move(work));
  }
}

core::Status GlooExchange::wait(const std::vector<c10::intrusive_ptr<c10d::Work>>& works,
                                std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  for (const c10::intrusive_ptr<c10d::Work>& work : works) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    const bool has_ended = work->wait(std::max(left, milliseconds(1)));
    if (!has_ended) return core::Error{core::Error::Code::lost, "the exchange was aborted"};
  }
  return {};
}

void GlooExchange::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const auto& works : works_) {
    for (const c10::intrusive_ptr<c10d::Work>& work : works) work->abort();
  }
}

}  // namespace gradtune
