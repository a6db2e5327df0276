// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An audience that keeps what it is told, for tests of the driver.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tuner/driver/audience.h"

namespace gradtune::tuner {

struct RecordedAudience final : Audience {
  void say(std::string_view said) override { text += said; }
  bool is_terminal() const override { return false; }
  void warn(const std::string& sentence) override { warnings.push_back(sentence); }

  std::string text;
  std::vector<std::string> warnings;
};

}  // namespace gradtune::tuner
