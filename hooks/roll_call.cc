// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/roll_call.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace gradtune {
namespace {

using Clock = std::chrono::steady_clock;

std::string key(const std::string& name, int rank) { return name + "/" + std::to_string(rank); }

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// The ranks whose key is not there, after waiting until all are or the time is up. Throws when the store does not
// answer.
std::vector<int> missing(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int size,
                         Clock::time_point deadline) {
  std::vector<int> open;
  for (int r = 0; r < size; ++r) open.push_back(r);
  for (;;) {
    std::erase_if(open, [&](int r) { return store->check({key(name, r)}); });
    if (open.empty() || Clock::now() >= deadline) return open;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

core::Status await_all(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, int size,
                       int64_t timeout_ms) {
  const std::string who = "gradtune: rank " + std::to_string(rank) + ": ";
  try {
    store->set(key(name, rank), bytes("here"));
    const std::vector<int> absent = missing(store, name, size, Clock::now() + std::chrono::milliseconds(timeout_ms));
    if (absent.empty()) return {};
    return core::Error{core::Error::Code::timeout, who + list(absent) + " of " + std::to_string(size) +
                                                       " did not come to \"" + name + "\" within " +
                                                       std::to_string(timeout_ms) + " ms"};
  } catch (const std::exception& caught) {
    const std::string reason(caught.what());
    return core::Error{core::Error::Code::lost,
                       who + "the store does not answer at \"" + name + "\": " + reason.substr(0, reason.find('\n'))};
  }
}

void sign_off(const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::string& why) noexcept {
  try {
    store->set(key("end", rank), bytes(why));
  } catch (const std::exception&) {
    // The store is gone: the others will suspect its host, rightly.
  }
}

void raise_alarm(const c10::intrusive_ptr<c10d::Store>& store, const std::string& who) noexcept {
  try {
    store->set("alarm", bytes(who));
  } catch (const std::exception&) {
    // As in sign_off.
  }
}

std::string first_failure(const c10::intrusive_ptr<c10d::Store>& store) noexcept {
  try {
    if (!store->check({"alarm"})) return "";
    const std::vector<uint8_t> who = store->get("alarm");
    return {who.begin(), who.end()};
  } catch (const std::exception&) {
    return "";  // its host may have finished well, with its last bytes still on the way to us
  }
}

std::string suspects(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int64_t grace_ms) noexcept {
  try {
    const std::chrono::milliseconds grace(grace_ms);
    const std::vector<int> silent = missing(store, "end", size, Clock::now() + grace);
    std::string left;
    std::vector<int> asking;  // the others that fail too, and ask the same question
    for (int r = 0; r < size; ++r) {
      if (r == rank || std::find(silent.begin(), silent.end(), r) != silent.end()) continue;
      const std::vector<uint8_t> why = store->get(key("end", r));
      const std::string text(why.begin(), why.end());
      if (text.starts_with("left")) {
        left += (left.empty() ? "" : "; ") + ("rank " + std::to_string(r) + " " + text);
      } else {
        asking.push_back(r);
      }
    }
    store->set(key("answered", rank), bytes("yes"));
    // Rank 0 may hold the store: it stays until the others have their answer.
    const auto deadline = Clock::now() + grace;
    while (rank == 0 && !asking.empty() && Clock::now() < deadline) {
      std::erase_if(asking, [&](int r) { return store->check({key("answered", r)}); });
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!left.empty()) return "suspected: " + left;
    if (!silent.empty()) return "suspected: " + list(silent) + ", silent";
    return "suspected: none, every rank reports a failure of its own";
  } catch (const std::exception&) {
    return "suspected: rank 0 or whoever holds the store, which does not answer";
  }
}

}  // namespace gradtune
