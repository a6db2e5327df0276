// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Who is there, asked through the group's store rather than through collectives, so that it works when a rank is
// missing or dead and communication has failed. Every call ends by its deadline, also when the store's host is frozen
// or gone; what did not answer once is not asked again. A store whose host is gone is not asked at all.
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

// What a rank told all others when it failed: an error (peer) that says what went wrong there, or one (lost) when that
// rank only lost somebody. Throws what the store does.
core::Status alarm_of(c10d::Store& store);
// Tells all others, unless a rank did before.
void raise_alarm(c10d::Store& store, const core::Error& error);

class RollCall {
 public:
  // `timeout_ms` is the time that an answer of the store may take, besides what a call waits for others. `say` gets
  // lines about whom this rank waits for; empty: nobody is told.
  RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, int size, int64_t timeout_ms, WaitingLine::Say say = {});

  // Tells that this rank has come to the point `name`, with a text for the others, and waits for all others, for the
  // time limit: their texts, by rank. The error names the ranks that did not come, or says what a rank told that failed
  // before it came, or is that of `alarm`, which is asked meanwhile.
  core::Result<std::vector<std::string>> await_all(const std::string& name, const std::string& text,
                                                   const std::function<core::Status()>& alarm = {});

  // Whether the store answers, and knows that this rank has come to that point.
  bool is_known(const std::string& name) noexcept;

  // Tells why this rank ends ("failed at step 12", "left after step 468").
  void sign_off(const std::string& why) noexcept;
  // Waits until all others have told so, for that time at most. For the rank that holds the store, so that what it told
  // can be read.
  void await_ends(int64_t most_ms) noexcept;

  // Tells all ranks that this one failed, unless one did before.
  void raise_alarm(const core::Error& error) noexcept;
  // What a rank told that did; nothing where the store does not answer.
  core::Status alarm() noexcept;

  // The process of the rank that told so first (process_end.h); empty where none did or the store does not answer.
  std::string failed_process() noexcept;

  // After a failure: which ranks are to blame. Those that signed off with the word "left" come first; otherwise, after
  // a short grace time, those that have not told a failure of their own (a killed process tells nothing). Text for
  // people, such as "suspected: rank 1, silent". When the store does not answer, the rank that holds it is suspected.
  std::string suspects(int64_t grace_ms) noexcept;

 private:
  // What was told first stays.
  void tell(const std::string& key, const std::string& text) noexcept;

  // What `call` returns, or an error when the store does not answer, and at once from then on.
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
