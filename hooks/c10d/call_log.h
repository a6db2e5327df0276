// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The calls that all ranks have to make together, numbered as this rank makes them. Where two ranks differ in the call
// of one number they wait for each other for good, and this tells so. Plain data, without threads or I/O.
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

  // The last calls, for other ranks.
  std::string text() const;

 private:
  static constexpr int64_t kKept = 8;  // a rank runs ahead by few calls: it waits for others in nearly each one
  struct Entry {
    Call call = Call::backward;
    int64_t step = 0;
  };
  std::array<Entry, kKept> entries_{};
  int64_t count_ = 0;
};

// A sentence about the first call that two ranks' logs both hold and in which they differ; empty where they agree, or
// where what a rank told is no log.
std::string first_difference_of_calls(std::string_view one, int rank_of_one, std::string_view other, int rank_of_other);

}  // namespace gradtune
