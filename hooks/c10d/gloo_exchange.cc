// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/gloo_exchange.h"

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace gradtune {
namespace {

// No two exchanges in flight share a tag.
constexpr int kTags = 1 << 30;

}  // namespace

core::Error c10d_error(const std::exception_ptr& exception) noexcept {
  using Code = core::Error::Code;
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    return {Code::lost, "out of memory"};  // a text so short needs no allocation
  } catch (const std::exception& caught) {
    try {
      const std::string_view whole = caught.what();
      const std::string message(whole.substr(0, whole.find('\n')));
      const bool timeout = message.find("imed out") != std::string::npos || message.find("imeout") != std::string::npos;
      return {timeout ? Code::timeout : Code::lost, message};
    } catch (...) {
      return {Code::lost, "out of memory"};
    }
  } catch (...) {
    return {Code::lost, "not known why"};
  }
}

GlooExchange::GlooExchange(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
    : gloo_(std::move(gloo)), threads_(gloo_->getOptions()->threads) {}

GlooExchange::~GlooExchange() { threads_.waitWorkComplete(); }

void GlooExchange::start(Messages messages, std::chrono::milliseconds timeout, std::function<void()> meanwhile,
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
    announce(messages, tag, works);
    threads_.run([=, this, messages = std::move(messages), meanwhile = std::move(meanwhile), done = std::move(done)] {
      core::Status status;
      try {
        status = transfer(messages, tag, works, deadline, meanwhile);
      } catch (...) {
        status = c10d_error(std::current_exception());
      }
      forget();
      done(std::move(status));
    });
  } catch (...) {
    forget();
    throw;
  }
}

void GlooExchange::announce(const Messages& messages, int tag, Works::iterator works) {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw std::runtime_error("the exchange was aborted");
  for (const Receive& receive : messages.receives) {
    std::vector<at::Tensor> tensors{receive.into};
    works->push_back(gloo_->recv(tensors, receive.from, tag));
  }
}

core::Status GlooExchange::transfer(const Messages& messages, int tag, Works::iterator works, Deadline deadline,
                                    const std::function<void()>& meanwhile) {
  const std::vector<c10::intrusive_ptr<c10d::Work>> receives = *works;  // no other thread adds to them from here on
  auto next = messages.sends.begin();
  const auto send_next = [&] {
    const at::Tensor& what = next->what;
    std::vector<at::Tensor> tensors{messages.length ? what.narrow(0, 0, messages.length(what)) : what};
    c10::intrusive_ptr<c10d::Work> work = gloo_->send(tensors, next->to, tag);
    ++next;
    const std::lock_guard lock(mutex_);
    works->push_back(std::move(work));
  };
  size_t received = 0;  // because a work can be waited for only once
  const auto receive = [&](size_t many) {
    core::Status status;
    while (status && received < many) status = await_message(*receives[received++], deadline);
    return status;
  };
  while (next != messages.sends.end() && next->after < 0) send_next();
  meanwhile();
  for (; next != messages.sends.end(); send_next()) {
    if (core::Status status = receive(static_cast<size_t>(next->after + 1)); !status) return status;
  }
  if (core::Status status = receive(receives.size()); !status) return status;
  for (size_t w = receives.size(); w < works->size(); ++w) {
    if (core::Status status = await_message(*(*works)[w], deadline); !status) return status;
  }
  return {};
}

core::Status await_message(c10d::Work& work, std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  const bool has_ended = work.wait(std::max(left, milliseconds(1)));
  if (has_ended) return {};
  return core::Error{core::Error::Code::lost, "the exchange was aborted"};
}

void GlooExchange::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const auto& works : works_) {
    for (const c10::intrusive_ptr<c10d::Work>& work : works) work->abort();
  }
}

}  // namespace gradtune
