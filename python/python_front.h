// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How a session speaks to a Python program: lines to sys.stderr, warnings by `warnings`, errors as gradtune.Error, also
// out of backward(), and Ctrl-C while it waits. Each call takes the GIL, which a session does not hold.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <string_view>

#include "engine/core/result.h"
#include "hooks/front.h"

namespace gradtune {

class PythonFront final : public Front {
 public:
  ~PythonFront() override;

  void say(std::string_view text) override;
  bool is_terminal() const override { return false; }  // whole lines: notebooks and progress bars share it
  void warn(const std::string& sentence) override;
  [[noreturn]] void raise(const core::Exception& error) override;
  // Runs Python's signal handlers, where this is the thread for them.
  core::Status interrupted() override;

  // The same as raise() for the code of pybind11, with the GIL held.
  [[noreturn]] void throw_to_python(const core::Exception& error);

 private:
  void set_error(const core::Exception& error);

  std::optional<py::error_already_set> interrupt_;  // raised in the place of what it led to
};

// What Python raised, as an error of gradtune, with the GIL held.
core::Error error_of_python(const py::error_already_set& raised);

// Sets gradtune.Error as the error of this thread of Python, with the GIL held.
void set_python_error(const core::Exception& error);

}  // namespace gradtune
