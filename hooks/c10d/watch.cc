// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/watch.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hooks/c10d/roll_call.h"

namespace gradtune {

struct Watch::Shared {
  Shared(c10::intrusive_ptr<c10d::Store> its_store, int its_rank, int its_size)
      : store(std::move(its_store)), rank(its_rank), size(its_size) {}

  const c10::intrusive_ptr<c10d::Store> store;
  const int rank, size;
  std::mutex mutex;
  std::condition_variable wake, has_ended;
  enum class State : uint8_t { idle, asked, asking, silent, ending, ended } state = State::idle;
  CallLog log;
  core::Status found;

  // Used by the watch's thread only.
  std::string told;  // the calls already published to other ranks
};

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : shared_(std::make_shared<Shared>(std::move(store), rank, size)), thread_([shared = shared_] { run(*shared); }) {}

Watch::~Watch() {
  using State = Shared::State;
  bool ended = false;
  {
    std::unique_lock lock(shared_->mutex);
    if (shared_->state != State::ended) shared_->state = State::ending;
    shared_->wake.notify_one();
    ended = shared_->has_ended.wait_for(lock, std::chrono::milliseconds(200),
                                        [&] { return shared_->state == State::ended; });
  }
  ended ? thread_.join() : thread_.detach();
}

void Watch::enter(Call call, int64_t step) {
  const std::lock_guard lock(shared_->mutex);
  shared_->log.enter(call, step);
}

core::Status Watch::ask() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->state == Shared::State::idle && shared_->found) {
    shared_->state = Shared::State::asked;
    shared_->wake.notify_one();
  }
  return shared_->found;
}

void Watch::run(Shared& shared) {
  using State = Shared::State;
  std::unique_lock lock(shared.mutex);
  for (;;) {
    shared.wake.wait(lock, [&] { return shared.state == State::asked || shared.state == State::ending; });
    if (shared.state == State::ending) break;
    shared.state = State::asking;
    const std::string calls = shared.log.text();
    lock.unlock();
    core::Status found;
    bool answers = true;
    try {
      found = look(shared, calls);
    } catch (const std::exception&) {
      answers = false;  // its host may have ended well, with its last bytes still in flight to this rank
    }
    lock.lock();
    shared.found = std::move(found);
    if (shared.state == State::asking)
      shared.state = answers ? State::idle : State::silent;  // and the store is not asked again
  }
  shared.state = State::ended;
  shared.has_ended.notify_one();
}

core::Status Watch::look(Shared& shared, const std::string& own_calls) {
  if (core::Status alarm = alarm_of(*shared.store); !alarm) return alarm;
  if (own_calls.empty()) return {};
  const auto key = [](int rank) { return "calls/" + std::to_string(rank); };
  if (shared.told != own_calls) {
    shared.store->set(key(shared.rank), std::vector<uint8_t>(own_calls.begin(), own_calls.end()));
    shared.told = own_calls;
  }
  // Each rank compares with the next one. If not all are alike, two neighbours differ.
  const int next = (shared.rank + 1) % shared.size;
  if (!shared.store->check({key(next)})) return {};
  const std::vector<uint8_t> others = shared.store->get(key(next));
  const std::string difference =
      first_difference_of_calls(own_calls, shared.rank, std::string(others.begin(), others.end()), next);
  if (difference.empty()) return {};
  const core::Error error{core::Error::Code::peer, difference};
  raise_alarm(*shared.store,
              error);  // must precede the end of this rank's connections, which other ranks would notice first
  return error;
}

}  // namespace gradtune
