// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/thread_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "engine/comm/group_member.h"
#include "engine/comm/in_process.h"
#include "engine/core/clock.h"

namespace gradtune::comm {
namespace {

using core::Error;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Group {
 public:
  Group(int size, ThreadGroupOptions options)
      : size_(size), options_(std::move(options)), ranks_(static_cast<size_t>(size)) {
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Group() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const { return size_; }

  void start(int rank, const Collective& collective, CompletionSink& sink, uint64_t token) {
    check_legal(collective, size_);
    std::unique_lock lock(mutex_);
    Rank& me = ranks_[static_cast<size_t>(rank)];
    if (ended_) {
      const Error error = me.error;
      lock.unlock();
      sink.complete(token, error);
      return;
    }
    ++me.under_way;
    const int64_t call = me.calls++;
    me.silent = me.silent || (options_.falls_silent && options_.falls_silent(rank, call));
    while (first_ + static_cast<int64_t>(meetings_.size()) <= call)
      meetings_.emplace_back().calls.resize(ranks_.size());
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
    idle_.wait(lock, [&] { return me.under_way == 0; });
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
    std::vector<std::optional<Call>> calls;
    int joined = 0;
  };
  struct Rank {
    int64_t calls = 0;
    int64_t under_way = 0;
    bool silent = false;
    bool left = false;
    Error error{};  // once the group has ended
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (!meetings_.empty() && meetings_.front().joined == size_) {
        hold_first(lock);
        continue;
      }
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
  }

  // The first meeting, which all have joined: moves its data and tells them, without the lock.
  void hold_first(std::unique_lock<std::mutex>& lock) {
    std::vector<Collective> collectives;
    for (const std::optional<Call>& call : meetings_.front().calls) collectives.push_back(call->collective);
    if (const std::string difference = first_difference(collectives); !difference.empty()) {
      end(lock, 0, {Error::Code::mismatch, difference});
      lock.lock();
      return;
    }
    const Meeting meeting = std::move(meetings_.front());
    meetings_.pop_front();
    ++first_;
    lock.unlock();
    move_data(collectives);
    for (const std::optional<Call>& call : meeting.calls) call->sink->complete(call->token, {});
    lock.lock();
    for (Rank& rank : ranks_) --rank.under_way;
    idle_.notify_all();
  }

  // Ends the group on account of `culprit` and tells all that is under way; releases the lock. What is being moved at
  // this moment still completes.
  void end(std::unique_lock<std::mutex>& lock, int culprit, const Error& error) {
    if (std::exchange(ended_, true)) return lock.unlock();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const bool own = static_cast<int>(r) == culprit || error.code == Error::Code::mismatch;
      ranks_[r].error = own ? error : lost(culprit, error);
    }
    const std::deque<Meeting> meetings = std::exchange(meetings_, {});
    lock.unlock();
    for (const Meeting& meeting : meetings) {
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (meeting.calls[r]) meeting.calls[r]->sink->complete(meeting.calls[r]->token, ranks_[r].error);
      }
    }
    lock.lock();
    for (const Meeting& meeting : meetings) {
      for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].under_way -= meeting.calls[r] ? 1 : 0;
    }
    idle_.notify_all();
    lock.unlock();
  }

  struct Deadline {
    int64_t at_ns = kNever;
    int rank = 0;
    size_t meeting = 0;
  };
  Deadline next_deadline() const {
    Deadline next;
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
  std::deque<Meeting> meetings_;  // not all have joined, or nobody moves the data yet
  int64_t first_ = 0;             // the number of the first of them
  bool ended_ = false;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_group(int size, ThreadGroupOptions options) {
  core::check(size >= 1 && options.threads >= 1, "a group has at least one rank and one thread");
  return members_of(std::make_shared<Group>(size, std::move(options)));
}

}  // namespace gradtune::comm
