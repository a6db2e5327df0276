// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/pacing.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "engine/core/bounded_wait.h"

namespace gradtune::comm {

class PacedLink {
 public:
  PacedLink(const LinkSpeed& speed, const core::Clock& clock) : clock_(clock) { set_speed(speed); }

  void set_speed(const LinkSpeed& speed) {
    core::check(speed.bytes_per_second > 0 && speed.latency_ns >= 0, "a link has a rate above 0 and a latency");
    const std::lock_guard lock(mutex_);
    speed_ = speed;
  }

  const core::Clock& clock() const { return clock_; }

  // Returns the time at which a transfer that is requested now ends.
  int64_t reserve_ns(int64_t sent_bytes, int64_t received_bytes) {
    const std::lock_guard lock(mutex_);
    const int64_t now_ns = clock_.now_ns();
    sent_until_ns_ = std::max(sent_until_ns_, now_ns) + duration_ns(sent_bytes);
    received_until_ns_ = std::max(received_until_ns_, now_ns) + duration_ns(received_bytes);
    return std::max(sent_until_ns_, received_until_ns_) + speed_.latency_ns;
  }

 private:
  int64_t duration_ns(int64_t bytes) const {
    return static_cast<int64_t>(static_cast<double>(bytes) / speed_.bytes_per_second * 1e9);
  }

  const core::Clock& clock_;
  std::mutex mutex_;
  LinkSpeed speed_;
  int64_t sent_until_ns_ = 0, received_until_ns_ = 0;
};

namespace {

class PacedCommunicator final : public Communicator, private CompletionSink {
 public:
  PacedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<PacedLink> link)
      : inner_(std::move(inner)), link_(std::move(link)), thread_("the paced link's thread", [this] { tell_late(); }) {}

  ~PacedCommunicator() override {
    std::unique_lock lock(mutex_);
    core::wait_or_end_process(
        changed_, lock, [&] { return calls_.empty(); }, "what a paced communicator has under way", most_wait_ms());
    stop_ = true;
    lock.unlock();
    changed_.notify_all();
    thread_.join();
    inner_.reset();  // its threads may still be in `complete`, which needs the members below
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  core::Space space() const override { return inner_->space(); }
  int64_t scratch_bytes(const Collective& collective) const override { return inner_->scratch_bytes(collective); }
  void expect_delay(double us) override { inner_->expect_delay(us); }

  void start(const Collective& collective, CompletionSink& sink, uint64_t token) override {
    const int64_t sent_bytes = link_bytes(collective, size());
    const bool is_source =
        core::traits_of(collective.kind).root == core::StepTraits::Root::sends && collective.root == rank();
    std::unique_lock lock(mutex_);
    if (error_) {
      const core::Error error = *error_;
      lock.unlock();
      comm::tell(sink, token, error);
      return;
    }
    const uint64_t id = next_id_++;
    calls_[id] = {.sink = &sink,
                  .token = token,
                  .due_ns = link_->reserve_ns(sent_bytes, is_source ? 0 : sent_bytes),
                  .deadline_ns = link_->clock().now_ns() + collective.timeout_ms * 1'000'000};
    lock.unlock();
    try {
      inner_->start(collective, *this, id);
    } catch (...) {  // it was not started, so its sink will not be told
      lock.lock();
      calls_.erase(id);
      throw;
    }
  }

  void abort() override {
    abort_anyway(*inner_);
    fail({core::Error::Code::lost, "the communicator was aborted"});
  }

 private:
  struct Call {
    CompletionSink* sink = nullptr;
    uint64_t token = 0;
    int64_t due_ns = 0;
    int64_t deadline_ns = 0;
    bool arrived = false;  // the inner communicator is done with it

    int64_t wake_ns() const { return std::min(due_ns, deadline_ns); }
  };
  using Calls = std::map<uint64_t, Call>;

  // From the inner communicator.
  void complete(uint64_t id, core::Status status, core::Fence /*done: it is on the host*/) override {
    if (!status) fail(core::copy_of(status.error()));
    std::unique_lock lock(mutex_);
    const auto call = calls_.find(id);
    if (!error_ && call->second.due_ns > link_->clock().now_ns()) {
      call->second.arrived = true;
      lock.unlock();
      changed_.notify_all();
      return;
    }
    tell(lock, call, error_ ? core::Status(core::copy_of(*error_)) : core::Status());
  }

  // The body of the thread: reports completions that the link delays. An exception ends the communicator, not the
  // process.
  void tell_late() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      try {
        tell_next(lock);
      } catch (...) {
        core::Error error = core::caught_error("the paced link");
        if (lock.owns_lock()) lock.unlock();
        fail(std::move(error));
        lock.lock();
      }
    }
  }

  // Waits if there is nothing to report yet.
  void tell_next(std::unique_lock<std::mutex>& lock) {
    const auto next = next_arrived();
    const int64_t now_ns = link_->clock().now_ns();
    if (next == calls_.end()) {
      changed_.wait(lock);
    } else if (next->second.wake_ns() > now_ns) {
      changed_.wait_for(lock, std::chrono::nanoseconds(next->second.wake_ns() - now_ns));
    } else if (next->second.due_ns <= next->second.deadline_ns) {
      tell(lock, next, {});
      lock.lock();
    } else {
      lock.unlock();
      abort_anyway(*inner_);
      fail({core::Error::Code::timeout,
            "a collective timed out: the paced link had not carried its bytes by the deadline"});
      lock.lock();
    }
  }

  // The longest time until all calls under way have ended: each ends by its deadline.
  int64_t most_wait_ms() const {
    int64_t last_ns = link_->clock().now_ns();
    const int64_t now_ns = last_ns;
    for (const auto& [id, call] : calls_) last_ns = std::max(last_ns, call.deadline_ns);
    return (last_ns - now_ns) / 1'000'000 + core::kMostWaitMs;
  }

  // Releases the lock.
  void tell(std::unique_lock<std::mutex>& lock, Calls::iterator call, core::Status status) {
    const Call told = call->second;
    calls_.erase(call);
    lock.unlock();
    comm::tell(*told.sink, told.token, std::move(status));
    changed_.notify_all();
  }

  // Calls that have arrived and only wait for their time complete with the error now; the inner communicator reports
  // the others.
  void fail(core::Error error) {
    std::unique_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
    for (auto call = next_arrived(); call != calls_.end(); call = next_arrived()) {
      tell(lock, call, core::copy_of(*error_));
      lock.lock();
    }
  }

  Calls::iterator next_arrived() {
    auto next = calls_.end();
    for (auto call = calls_.begin(); call != calls_.end(); ++call) {
      if (call->second.arrived && (next == calls_.end() || call->second.wake_ns() < next->second.wake_ns()))
        next = call;
    }
    return next;
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<PacedLink> link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Calls calls_;
  uint64_t next_id_ = 0;
  std::optional<core::Error> error_;
  bool stop_ = false;
  core::BoundedThread thread_;
};

}  // namespace

std::shared_ptr<PacedLink> make_paced_link(const LinkSpeed& speed, const core::Clock& clock) {
  return std::make_shared<PacedLink>(speed, clock);
}

std::unique_ptr<Communicator> make_paced(std::unique_ptr<Communicator> inner, std::shared_ptr<PacedLink> link) {
  return std::make_unique<PacedCommunicator>(std::move(inner), std::move(link));
}

void set_speed(PacedLink& link, const LinkSpeed& speed) { link.set_speed(speed); }

}  // namespace gradtune::comm
