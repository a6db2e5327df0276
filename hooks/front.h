// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The program around a session, as far as the session talks to it: lines for people, the form in which errors leave
// a backward pass, and the user's wish to interrupt. A C++ program has standard error (Console); another language
// has its own implementation. It is called on the training thread, and while a session is made and destroyed.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/result.h"
#include "tuner/driver/audience.h"

namespace gradtune {

class Front : public tuner::Audience {
 public:
  // Throws, out of an autograd hook, the exception that the program expects of gradtune.
  [[noreturn]] virtual void raise(const core::Exception& error) { throw error; }

  // Polled about every quarter of a second while this rank waits for others. If the user wants to end training it
  // returns an error (peer), with which training ends on all ranks.
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
