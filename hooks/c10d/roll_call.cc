// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/roll_call.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "hooks/c10d/process_end.h"
#include "hooks/c10d/store_server.h"
#include "hooks/c10d/with_deadline.h"

namespace gradtune {
namespace {

using Clock = std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;

std::string key(const std::string& name, int rank) { return name + "/" + std::to_string(rank); }

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_of(const Store& store, const std::string& key) {
  const std::vector<uint8_t> value = store->get(key);
  return {value.begin(), value.end()};
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

std::string at(const std::string& address) { return address.empty() ? std::string() : " at " + address; }

constexpr char kAlarm[] = "alarm";
constexpr char kFailedProcess[] = "failed process";
constexpr char kFailed = '!', kLost = '?';  // the first letter of an alarm

std::vector<std::string> keys_of(const std::string& name, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int r : ranks) keys.push_back(key(name, r));
  return keys;
}

// Waits until all keys exist or the time is up. Returns the ranks whose key is missing.
std::vector<int> missing(const Store& store, const std::string& name, std::vector<int> ranks, int64_t limit_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(limit_ms);
  const std::vector<std::string> keys = keys_of(name, ranks);
  while (!store->check(keys)) {  // one request for all keys, because every rank asks
    if (Clock::now() >= deadline) {
      std::erase_if(ranks, [&](int r) { return store->check({key(name, r)}); });
      return ranks;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

std::string first_of(const Store& store) {
  return store->check({kAlarm}) ? ", the first one " + text_of(store, kAlarm).substr(1) : std::string();
}

// The result of a point that all ranks must reach: the texts of all ranks, an alarm, or the missing ranks.
struct Arrivals {
  std::vector<std::string> texts;
  core::Status alarm;
  std::vector<int> absent;
};

// The ranks that this rank has to name. Rank 0 names them, or rank 1 if rank 0 is missing.
std::string who_waits(const Store& store, const std::string& name, int rank, int size) {
  const std::vector<int> absent = missing(store, name, all_ranks(size), 0);
  if (absent.empty() || (rank == 1 && absent.front() != 0)) return "";
  return "rank " + std::to_string(rank) + " waits for " + list(absent) + " of " + std::to_string(size) + " at \"" +
         name + "\", which " + (absent.size() == 1 ? "has" : "have") + " to reach the store" + at(address_of(store));
}

Arrivals await_arrivals(const Store& store, const std::string& name, int rank, int size, int64_t limit_ms,
                        SharedText& waits) {
  constexpr std::chrono::seconds kAsk{1};
  const std::vector<int> ranks = all_ranks(size);
  const std::vector<std::string> keys = keys_of(name, ranks);
  auto ask_next = Clock::now() + kAsk;
  const auto deadline = Clock::now() + std::chrono::milliseconds(limit_ms);
  Arrivals arrivals;
  while (!store->check(keys)) {
    arrivals.alarm = alarm_of(*store);
    if (!arrivals.alarm) return arrivals;
    if (Clock::now() >= deadline) {
      arrivals.absent = missing(store, name, ranks, 0);
      return arrivals;
    }
    if (rank <= 1 && Clock::now() >= ask_next) {
      waits.set(who_waits(store, name, rank, size));
      ask_next += kAsk;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (const std::string& each : keys) arrivals.texts.push_back(text_of(store, each));
  return arrivals;
}

std::string find_suspects(const Store& store, int rank, int size, int64_t grace_ms) {
  const std::vector<int> silent = missing(store, "end", all_ranks(size), grace_ms);
  std::string left;
  std::vector<int> asking;  // the other ranks that failed too and ask the same question
  for (int r = 0; r < size; ++r) {
    if (r == rank || std::find(silent.begin(), silent.end(), r) != silent.end()) continue;
    const std::string why = text_of(store, key("end", r));
    if (why.starts_with("left")) {
      left += (left.empty() ? "" : "; ") + ("rank " + std::to_string(r) + " " + why);
    } else {
      asking.push_back(r);
    }
  }
  store->set(key("answered", rank), bytes("yes"));
  // Rank 0 may serve the store, so it stays until the other ranks have their answer.
  if (rank == 0) missing(store, "answered", asking, grace_ms);
  if (!left.empty()) return "suspected: " + left;
  if (!silent.empty()) return "suspected: " + list(silent) + ", silent";
  return "suspected: none, every rank reports a failure of its own" + first_of(store);
}

}  // namespace

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, int size, int64_t timeout_ms, WaitingLine::Say say)
    : store_(std::move(store)), rank_(rank), size_(size), timeout_ms_(timeout_ms), say_(std::move(say)) {}

template <typename Call>
auto RollCall::ask(int64_t waits_ms, Call call, const std::function<core::Status()>& alarm)
    -> core::Result<decltype(call())> {
  using Code = core::Error::Code;
  if (is_silent_) return core::Error{Code::timeout, "it did not answer before"};
  auto asked = [store = store_, call = std::move(call)]() mutable {
    constexpr std::chrono::milliseconds kConnectWithin{500};
    if (is_served(store, kConnectWithin)) return call();
    throw core::Exception({Code::lost, "its host is gone"});
  };
  auto answer = with_deadline(std::chrono::milliseconds(waits_ms + timeout_ms_), std::move(asked), alarm);
  is_silent_ = !answer && (answer.error().code == Code::timeout || answer.error().code == Code::lost);
  return answer;
}

core::Result<std::vector<std::string>> RollCall::await_all(const std::string& name, const std::string& text,
                                                           const std::function<core::Status()>& alarm) {
  const std::string who = "gradtune: rank " + std::to_string(rank_) + ": ";
  const auto waits = std::make_shared<SharedText>();
  WaitingLine line(say_);
  auto asked = ask(
      timeout_ms_,
      [store = store_, name, text, rank = rank_, size = size_, limit = timeout_ms_, waits] {
        store->set(key(name, rank), bytes(text));
        return await_arrivals(store, name, rank, size, limit, *waits);
      },
      [&] {
        line.tick(waits->get());
        return alarm ? alarm() : core::Status();
      });
  if (!asked && asked.error().code == core::Error::Code::peer)
    return core::Error{asked.error().code, who + asked.error().message};
  if (!asked) {
    return core::Error{core::Error::Code::lost,
                       who + "the store does not answer at \"" + name + "\": " + asked.error().message};
  }
  Arrivals& arrivals = asked.value();
  if (!arrivals.alarm) return core::Error{arrivals.alarm.error().code, who + arrivals.alarm.error().message};
  if (arrivals.absent.empty()) return std::move(arrivals.texts);
  return core::Error{core::Error::Code::timeout, who + list(arrivals.absent) + " of " + std::to_string(size_) +
                                                     " did not come to \"" + name + "\" within " +
                                                     std::to_string(timeout_ms_) + " ms"};
}

bool RollCall::is_known(const std::string& name) noexcept {
  const auto known = ask(0, [store = store_, name, rank = rank_] { return store->check({key(name, rank)}); });
  return known && known.value();
}

// If the store is gone, the other ranks suspect the rank that serves it, and they are right.
void RollCall::tell(const std::string& key, const std::string& text) noexcept {
  static_cast<void>(ask(0, [store = store_, key, text] {
    if (!store->check({key})) store->set(key, bytes(text));  // if two ranks write at once, either value is right
    return true;
  }));
}

void RollCall::sign_off(const std::string& why) noexcept { tell(key("end", rank_), why); }

void RollCall::await_ends(int64_t most_ms) noexcept {
  static_cast<void>(ask(most_ms, [store = store_, size = size_, most_ms] {
    missing(store, "end", all_ranks(size), most_ms);
    return true;
  }));
}

void RollCall::raise_alarm(const core::Error& error) noexcept {
  static_cast<void>(ask(0, [store = store_, error] {
    gradtune::raise_alarm(*store, error);
    return true;
  }));
}

core::Status RollCall::alarm() noexcept {
  constexpr int64_t kMostMs = 1000;  // a store that answered so far is fast
  auto told = ask(std::min<int64_t>(0, kMostMs - timeout_ms_), [store = store_] { return alarm_of(*store); });
  return told ? std::move(told).value() : core::Status();
}

std::string RollCall::failed_process() noexcept {
  const auto told = ask(
      0, [store = store_] { return store->check({kFailedProcess}) ? text_of(store, kFailedProcess) : std::string(); });
  return told ? told.value() : std::string();
}

void raise_alarm(c10d::Store& store, const core::Error& error) {
  const bool lost = error.code == core::Error::Code::lost || error.code == core::Error::Code::timeout;
  // If two ranks write at once, either value is right. A failure that a rank knows has precedence over a report that
  // it lost a peer.
  const core::Status told = alarm_of(store);
  if (told || (told.error().code == core::Error::Code::lost && !lost)) {
    store.set(kFailedProcess, bytes(process_name()));
    store.set(kAlarm, bytes((lost ? kLost : kFailed) + error.message));
  }
}

core::Status alarm_of(c10d::Store& store) {
  if (!store.check({kAlarm})) return {};
  const std::vector<uint8_t> text = store.get(kAlarm);
  if (text.empty()) return {};
  const std::string message(text.begin() + 1, text.end());
  if (text[0] == kFailed) return core::Error{core::Error::Code::peer, "another rank failed: " + message};
  return core::Error{core::Error::Code::lost, "another rank told that it had failed (" + message + ")"};
}

std::string RollCall::suspects(int64_t grace_ms) noexcept {
  const auto found = ask(2 * grace_ms, [store = store_, rank = rank_, size = size_, grace_ms] {
    return find_suspects(store, rank, size, grace_ms);
  });
  return found ? found.value() : "suspected: rank 0 or whoever holds the store, which does not answer";
}

}  // namespace gradtune
