// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The program that a session runs in, as far as it is spoken to: lines for people, how errors leave a backward pass,
// and whether its user wants it to end. A C++ program has standard error (Console); another language implements it with
// what it has. It is called on the thread that trains, and while a session is made and destroyed.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/result.h"

namespace gradtune {

class Front {
 public:
  virtual ~Front() = default;

  // Text for people, whole lines with their ends, or parts of one line where it is a terminal.
  virtual void say(std::string_view text) = 0;
  // Whether a carriage return takes the cursor back.
  virtual bool is_terminal() const = 0;
  // What a user should know though training goes on: a sentence.
  virtual void warn(const std::string& sentence) = 0;

  // Out of a hook of autograd, as what the program expects of gradtune.
  [[noreturn]] virtual void raise(const core::Exception& error) { throw error; }

  // Asked every quarter of a second or so while this rank waits for others: an error (peer), with which training ends
  // on all ranks, where the user wants it to end.
  virtual core::Status interrupted() { return {}; }
};

// Standard error.
class Console final : public Front {
 public:
  void say(std::string_view text) override;
  bool is_terminal() const override;
  void warn(const std::string& sentence) override;
};

}  // namespace gradtune
