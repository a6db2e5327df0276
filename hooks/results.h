// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The result of tuning as all ranks know it: rank 0 decides, and its text goes with the next control word.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "gradtune/gradtune.h"
#include "hooks/result_text.h"

namespace gradtune {

class Results {
 public:
  // On rank 0: the other ranks do not have this result yet.
  void announce(std::string text) { news_ = std::move(text); }
  const std::string& news() const { return news_; }
  // The text that rank 0 sent.
  void take(const std::string& text) {
    forget();
    last_ = parse_result(text).value();
  }
  void forget() {
    last_.reset();
    ++taken_;
    news_.clear();
  }

  const std::optional<Optimizer::Result>& last() const { return last_; }  // none before rank 0 sent one
  int64_t taken() const { return taken_; }                                // grows with each new result

 private:
  std::string news_;
  std::optional<Optimizer::Result> last_;
  int64_t taken_ = 0;
};

}  // namespace gradtune
