// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The front of a Python program: lines go to `logging` or sys.stderr, warnings through `warnings`, errors are
// gradtune.Error, also in backward(), and Ctrl-C works while a session waits. Each call takes the GIL, which a session
// does not hold.
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
  // Only whole lines, because notebooks and progress bars share stderr.
  bool is_terminal() const override { return false; }
  void warn(const std::string& sentence) override;
  [[noreturn]] void raise(const core::Exception& error) override;
  // Runs Python's signal handlers, if this is the thread for them.
  core::Status interrupted() override;

  // The same as raise() for code of pybind11, with the GIL held.
  [[noreturn]] void throw_to_python(const core::Exception& error);

 private:
  void set_error(const core::Exception& error);

  std::optional<py::error_already_set> interrupt_;  // raised instead of the error that it caused
};

// Converts a Python exception to an error of gradtune, with the GIL held.
core::Error error_of_python(const py::error_already_set& raised);

// Sets gradtune.Error as the current error of this Python thread, with the GIL held.
void set_python_error(const core::Exception& error);

}  // namespace gradtune
