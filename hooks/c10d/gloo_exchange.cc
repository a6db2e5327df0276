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
    : gloo_(std::move(gloo)), eager_(gloo_), threads_(gloo_->getOptions()->threads) {}

GlooExchange::~GlooExchange() { threads_.waitWorkComplete(); }

void GlooExchange::start(Messages messages, std::chrono::milliseconds timeout, std::function<void()> meanwhile,
                         std::function<void(core::Status)> done) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto works = [this] {
    const std::lock_guard lock(mutex_);
    return works_.emplace(works_.end());
  }();
  const auto forget = [this, works] {
    const std::lock_guard lock(mutex_);
    works_.erase(works);
  };
  try {
    Ways ways = announce(messages, works);
    threads_.run([=, this, messages = std::move(messages), ways = std::move(ways), meanwhile = std::move(meanwhile),
                  done = std::move(done)]() mutable {
      core::Status status;
      try {
        status = transfer(messages, ways, works, deadline, meanwhile);
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

GlooExchange::Ways GlooExchange::announce(const Messages& messages, Works::iterator works) {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw std::runtime_error("the exchange was aborted");
  Ways ways{.tag = std::exchange(next_tag_, tags::kExchanges.after(next_tag_, 1))};
  for (const Receive& receive : messages.receives) {
    const auto bytes = static_cast<int64_t>(receive.into.nbytes());
    Incoming incoming;
    if (eager_.takes(bytes)) {
      incoming.eager = eager_.expect(receive.from, bytes);
      works->insert(works->end(), incoming.eager.works.begin(), incoming.eager.works.end());
    } else {
      std::vector<at::Tensor> tensors{receive.into};
      incoming.work = gloo_->recv(tensors, receive.from, ways.tag);
      works->push_back(incoming.work);
    }
    ways.receives.push_back(std::move(incoming));
  }
  for (const Send& send : messages.sends) {
    const auto bytes = static_cast<int64_t>(send.what.nbytes());
    ways.sends.push_back(eager_.takes(bytes) ? std::optional(eager_.reserve(send.to, bytes)) : std::nullopt);
  }
  return ways;
}

core::Status GlooExchange::transfer(const Messages& messages, Ways& ways, Works::iterator works, Deadline deadline,
                                    const std::function<void()>& meanwhile) {
  const size_t announced = works->size();  // no other thread adds to them from here on
  size_t sent = 0, received = 0;
  const auto send_next = [&] {
    const auto sending = send(messages, sent++, ways);
    const std::lock_guard lock(mutex_);
    works->insert(works->end(), sending.begin(), sending.end());
  };
  const auto receive = [&](size_t many) {
    core::Status status;
    for (; status && received < many; ++received) {  // a work can be waited for only once
      Incoming& next = ways.receives[received];
      status = next.work ? await_message(*next.work, deadline)
                         : eager_.take(next.eager, messages.receives[received].into, deadline);
    }
    return status;
  };
  while (sent < messages.sends.size() && messages.sends[sent].after < 0) send_next();
  meanwhile();
  for (; sent < messages.sends.size(); send_next()) {
    if (core::Status status = receive(static_cast<size_t>(messages.sends[sent].after + 1)); !status) return status;
  }
  if (core::Status status = receive(ways.receives.size()); !status) return status;
  for (size_t w = announced; w < works->size(); ++w) {
    if (core::Status status = await_message(*(*works)[w], deadline); !status) return status;
  }
  return {};
}

std::vector<c10::intrusive_ptr<c10d::Work>> GlooExchange::send(const Messages& messages, size_t number,
                                                               const Ways& ways) {
  const at::Tensor& what = messages.sends[number].what;
  const int64_t used = messages.length ? messages.length(what) : what.numel();
  if (const auto& reserved = ways.sends[number]) {
    return eager_.send(*reserved, what, used * static_cast<int64_t>(what.element_size()));
  }
  std::vector<at::Tensor> tensors{what.narrow(0, 0, used)};
  return {gloo_->send(tensors, messages.sends[number].to, ways.tag)};
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
  eager_.abort();
  for (const auto& works : works_) {
    for (const c10::intrusive_ptr<c10d::Work>& work : works) work->abort();
  }
}

}  // namespace gradtune
