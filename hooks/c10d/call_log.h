// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The calls that all ranks must make together, numbered in the order in which this rank makes them. Two ranks whose
// calls of one number differ would wait for each other for good; comparing the logs finds this. Plain data, without
// threads or I/O.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradtune {

enum class Call : uint8_t { backward, step, broadcast_buffers, save_checkpoint, load_checkpoint, wrap };

std::string_view to_string(Call call);

class CallLog {
 public:
  // Allocates nothing.
  void enter(Call call, int64_t step);
  int64_t count() const { return count_; }

  // The last calls, as text for other ranks.
  std::string text() const;

 private:
  static constexpr int64_t kKept = 8;  // a rank waits for others in nearly every call, so it is few calls ahead
  struct Entry {
    Call call = Call::backward;
    int64_t step = 0;
  };
  std::array<Entry, kKept> entries_{};
  int64_t count_ = 0;
};

// A sentence that describes the first call that both logs hold and in which they differ. Empty if they agree or if a
// text is not a log.
std::string first_difference_of_calls(std::string_view one, int rank_of_one, std::string_view other, int rank_of_other);

}  // namespace gradtune
