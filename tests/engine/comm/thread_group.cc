// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/comm/thread_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "engine/core/bounded_wait.h"
#include "engine/core/clock.h"
#include "tests/engine/comm/group_member.h"
#include "tests/engine/comm/in_process.h"

namespace gradtune::comm {
namespace {

using core::Error;

constexpr int kNobody = -1;  // blames no rank: all ranks receive the same error
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Group {
 public:
  Group(int size, ThreadGroupOptions options)
      : size_(size), options_(std::move(options)), ranks_(static_cast<size_t>(size)) {
    try {
      for (int i = 0; i < options_.threads; ++i) threads_.emplace_back("a thread of a group", [this] { work(); });
    } catch (...) {  // the threads already started use members that are about to be destroyed
      stop();
      throw;
    }
  }

  ~Group() { stop(); }

  int size() const { return size_; }

  void start(int rank, const Collective& collective, CompletionSink& sink, uint64_t token) {
    check_legal(collective, size_);
    std::unique_lock lock(mutex_);
    Rank& me = ranks_[static_cast<size_t>(rank)];
    if (ended_) {
      const Error error = me.error;
      lock.unlock();
      tell(sink, token, error);
      return;
    }
    const int64_t call = me.calls;
    me.silent = me.silent || (options_.falls_silent && options_.falls_silent(rank, call));
    while (first_ + static_cast<int64_t>(meetings_.size()) <= call) meetings_.push_back(Meeting(ranks_.size()));
    // The call has started: nothing throws from here on.
    ++me.calls;
    ++me.under_way;
    Meeting& meeting = meetings_[static_cast<size_t>(call - first_)];
    meeting.calls[static_cast<size_t>(rank)] = {collective, &sink, token,
                                                clock_.now_ns() + collective.timeout_ms * 1'000'000};
    meeting.joined += me.silent ? 0 : 1;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!ranks_[r].left || meeting.calls[r]) continue;
      end(lock, static_cast<int>(r), {Error::Code::lost, "it closed its communicator"});
      return;
    }
    lock.unlock();
    changed_.notify_all();
  }

  void abort(int rank) {
    std::unique_lock lock(mutex_);
    end(lock, rank, {Error::Code::lost, "the communicator was aborted"});
  }

  // Blocks until nothing of this rank is under way.
  void leave(int rank) {
    std::unique_lock lock(mutex_);
    Rank& me = ranks_[static_cast<size_t>(rank)];
    core::wait_or_end_process(
        idle_, lock, [&] { return me.under_way == 0; }, "what a rank of a group has under way", most_wait_ms(rank));
    me.left = true;
    if (!meetings_.empty()) end(lock, rank, {Error::Code::lost, "it closed its communicator"});
  }

 private:
  struct Call {
    Collective collective;
    CompletionSink* sink;
    uint64_t token;
    int64_t deadline_ns;
  };
  // The calls that belong together: every rank's n-th.
  struct Meeting {
    explicit Meeting(size_t size) : calls(size) {}
    std::vector<std::optional<Call>> calls;
    int joined = 0;
  };
  struct Rank {
    int64_t calls = 0;
    int64_t under_way = 0;
    bool silent = false;
    bool left = false;
    Error error{};  // valid once the group has ended
  };

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (core::BoundedThread& thread : threads_) thread.join(options_.most_wait_ms);
  }

  // The body of a thread. An exception ends the group, not the process.
  void work() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      try {
        work_once(lock);
      } catch (...) {
        const Error error = core::caught_error("a thread of the group");
        if (!lock.owns_lock()) lock.lock();
        end(lock, kNobody, error);
        lock.lock();
      }
    }
  }

  // Waits if there is nothing to do yet.
  void work_once(std::unique_lock<std::mutex>& lock) {
    if (!ended_ && !meetings_.empty() && meetings_.front().joined == size_) return hold_first(lock);
    const Deadline next = next_deadline();
    const int64_t now_ns = clock_.now_ns();
    if (next.at_ns <= now_ns) {
      const Meeting& meeting = meetings_[next.meeting];
      end(lock, next.rank, timed_out(meeting.calls[static_cast<size_t>(next.rank)]->collective, missing(meeting)));
      lock.lock();
    } else if (next.at_ns == kNever) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, std::chrono::nanoseconds(next.at_ns - now_ns));
    }
  }

  // The longest time until all calls under way have ended: each ends by its deadline, unless a sink does not return.
  int64_t most_wait_ms(int rank) const {
    const int64_t now_ns = clock_.now_ns();
    int64_t last_ns = now_ns;
    for (const Meeting& meeting : meetings_) {
      const std::optional<Call>& call = meeting.calls[static_cast<size_t>(rank)];
      if (call) last_ns = std::max(last_ns, call->deadline_ns);
    }
    return (last_ns - now_ns) / 1'000'000 + options_.most_wait_ms;
  }

  // Takes the first meeting, which all ranks have joined, moves its data and tells them, without the lock.
  void hold_first(std::unique_lock<std::mutex>& lock) {
    std::vector<Collective> collectives;
    for (const std::optional<Call>& call : meetings_.front().calls) collectives.push_back(call->collective);
    if (const std::string difference = first_difference(collectives); !difference.empty()) {
      end(lock, kNobody, {Error::Code::mismatch, difference});
      lock.lock();
      return;
    }
    const Meeting meeting = std::move(meetings_.front());
    meetings_.pop_front();
    ++first_;
    lock.unlock();
    core::Status moved;
    try {
      move_data(collectives);
    } catch (...) {
      moved = core::caught_error("moving the data of a group");
    }
    for (const std::optional<Call>& call : meeting.calls) {
      tell(*call->sink, call->token, moved ? core::Status() : core::copy_of(moved.error()));
    }
    lock.lock();
    for (Rank& rank : ranks_) --rank.under_way;
    idle_.notify_all();
    if (moved) return;
    end(lock, kNobody, moved.error());
    lock.lock();
  }

  // Ends the group on account of `culprit` and reports that to all calls under way; releases the lock. Calls whose
  // data is being moved at this moment still complete.
  void end(std::unique_lock<std::mutex>& lock, int culprit, const Error& error) noexcept {
    if (std::exchange(ended_, true)) return lock.unlock();
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].error = error_of(static_cast<int>(r), culprit, error);
    lock.unlock();
    // Once the group has ended, nobody joins a meeting, and no thread holds one.
    for (const Meeting& meeting : meetings_) {
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (!meeting.calls[r]) continue;
        tell(*meeting.calls[r]->sink, meeting.calls[r]->token, core::copy_of(ranks_[r].error));
      }
    }
    lock.lock();
    for (const Meeting& meeting : meetings_) {
      for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].under_way -= meeting.calls[r] ? 1 : 0;
    }
    meetings_.clear();
    idle_.notify_all();
    lock.unlock();
  }

  static Error error_of(int rank, int culprit, const Error& error) noexcept {
    if (rank == culprit || culprit == kNobody) return core::copy_of(error);
    try {
      return lost(culprit, error);
    } catch (...) {
      return core::caught_error({});
    }
  }

  struct Deadline {
    int64_t at_ns = kNever;
    int rank = 0;
    size_t meeting = 0;
  };
  Deadline next_deadline() const {
    Deadline next;
    if (ended_) return next;
    for (size_t m = 0; m < meetings_.size(); ++m) {
      for (size_t r = 0; r < ranks_.size(); ++r) {
        const std::optional<Call>& call = meetings_[m].calls[r];
        if (call && call->deadline_ns < next.at_ns) next = {call->deadline_ns, static_cast<int>(r), m};
      }
    }
    return next;
  }

  std::vector<int> missing(const Meeting& meeting) const {
    std::vector<int> ranks;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!meeting.calls[r] || ranks_[r].silent) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
  }

  const int size_;
  const ThreadGroupOptions options_;
  const core::SteadyClock clock_;

  std::mutex mutex_;
  std::condition_variable changed_;  // for the threads
  std::condition_variable idle_;     // for ranks that leave
  std::vector<Rank> ranks_;
  std::deque<Meeting> meetings_;  // those that some rank has not joined, or whose data no thread moves yet
  int64_t first_ = 0;             // the number of the first of these
  bool ended_ = false;
  bool stop_ = false;
  std::vector<core::BoundedThread> threads_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_group(int size, ThreadGroupOptions options) {
  core::check(size >= 1 && options.threads >= 1, "a group has at least one rank and one thread");
  return members_of(std::make_shared<Group>(size, std::move(options)));
}

}  // namespace gradtune::comm
