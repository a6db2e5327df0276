// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds out which ranks are present through the group's store, without collectives, so that it works when a rank is
// missing or dead and communication has failed. Every call ends by its deadline, even if the store's host is frozen
// or gone. After the store failed to answer once, it is not asked again. A store whose host is known to be gone is
// not asked at all.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "hooks/c10d/waiting_line.h"

namespace gradtune {

// The failure that a rank reported to all others: an error (peer) that says what went wrong there, or an error
// (lost) if that rank only lost a peer. Throws the store's exceptions.
core::Status alarm_of(c10d::Store& store);
// Reports this failure to all ranks, unless a rank reported one before.
void raise_alarm(c10d::Store& store, const core::Error& error);

class RollCall {
 public:
  // `timeout_ms` is the time that an answer of the store may take, in addition to the time for which a call waits
  // for other ranks. `say` gets lines about the ranks that this one waits for; empty: no output.
  RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, int size, int64_t timeout_ms, WaitingLine::Say say = {});

  // Announces that this rank has reached the point `name`, with a text for the others, and waits up to the timeout
  // for all others. Returns their texts, by rank. The error names the ranks that did not come, or is the failure
  // that a rank reported, or the error of `alarm`, which is polled meanwhile.
  core::Result<std::vector<std::string>> await_all(const std::string& name, const std::string& text,
                                                   const std::function<core::Status()>& alarm = {});

  // True if the store answers and knows that this rank has reached that point.
  bool is_known(const std::string& name) noexcept;

  // Publishes why this rank ends ("failed at step 12", "left after step 468").
  void sign_off(const std::string& why) noexcept;
  // Waits until all other ranks have signed off, for at most `most_ms`. The rank that serves the store calls it, so
  // that the others can read its own text.
  void await_ends(int64_t most_ms) noexcept;

  // Tells all ranks that this one failed, unless a rank did before.
  void raise_alarm(const core::Error& error) noexcept;
  // The failure that a rank reported; ok if there is none or the store does not answer.
  core::Status alarm() noexcept;

  // The process of the rank that reported a failure first (process_end.h); empty if there is none or the store does
  // not answer.
  std::string failed_process() noexcept;

  // After a failure: the ranks that probably caused it. Ranks that signed off with the word "left" come first.
  // Otherwise, after a short grace time, it is the ranks that have not reported a failure of their own (a killed
  // process reports nothing). Returns text for people, such as "suspected: rank 1, silent". If the store does not
  // answer, the rank that serves it is suspected.
  std::string suspects(int64_t grace_ms) noexcept;

 private:
  // Writes the text unless the key already has one.
  void tell(const std::string& key, const std::string& text) noexcept;

  // Returns the result of `call`, or an error if the store does not answer. After that it returns the error at once.
  template <typename Call>
  auto ask(int64_t waits_ms, Call call, const std::function<core::Status()>& alarm = {})
      -> core::Result<decltype(call())>;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const int64_t timeout_ms_;
  const WaitingLine::Say say_;
  bool is_silent_ = false;
};

}  // namespace gradtune
