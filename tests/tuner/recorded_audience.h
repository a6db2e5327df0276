// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An audience that keeps what it is told, for tests. `Base` is the interface that it implements: Audience, or one that
// is derived from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tuner/driver/audience.h"

namespace gradtune::tuner {

template <typename Base = Audience>
struct Recorded : Base {
  void say(std::string_view said) override { text += said; }
  bool is_terminal() const override { return false; }
  void warn(const std::string& sentence) override { warnings.push_back(sentence); }

  std::string text;
  std::vector<std::string> warnings;
};

}  // namespace gradtune::tuner
