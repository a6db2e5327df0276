// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The people who watch a job, as far as rank 0's driver talks to them: lines of progress and warnings. A program
// implements it; tests record what is said. It is called on the thread that calls the driver.
#pragma once

#include <string>
#include <string_view>

namespace gradtune::tuner {

class Audience {
 public:
  virtual ~Audience() = default;

  // Text for people: whole lines with their ends, or parts of one line if it is a terminal.
  virtual void say(std::string_view text) = 0;
  // True if a carriage return moves the cursor back.
  virtual bool is_terminal() const = 0;
  // A warning for the user; training goes on. The text is one sentence.
  virtual void warn(const std::string& sentence) = 0;
};

}  // namespace gradtune::tuner
