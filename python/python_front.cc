// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/python_front.h"

#include <torch/csrc/Exceptions.h>

#include <utility>

namespace gradtune {
namespace {

py::object error_class() { return py::module_::import("gradtune._errors").attr("Error"); }

}  // namespace

PythonFront::~PythonFront() {
  if (!interrupt_) return;
  const py::gil_scoped_acquire gil;
  interrupt_.reset();
}

// A failure to print must not end training.
void PythonFront::say(std::string_view text) {
  const py::gil_scoped_acquire gil;
  try {
    py::module_::import("gradtune._errors").attr("say")(std::string(text));
  } catch (py::error_already_set& raised) {
    raised.discard_as_unraisable("gradtune: a line for people");
  }
}

void PythonFront::warn(const std::string& sentence) {
  const py::gil_scoped_acquire gil;
  try {
    py::module_::import("gradtune._errors").attr("warn")(sentence);
  } catch (const py::error_already_set& raised) {  // the user turned the warning into an error
    throw core::Exception(error_of_python(raised));
  }
}

core::Status PythonFront::interrupted() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return {};
  interrupt_.emplace();
  return core::Error{core::Error::Code::peer, "interrupted by its user (" + std::string(interrupt_->what()) + ")"};
}

void PythonFront::set_error(const core::Exception& error) {
  if (!interrupt_) return set_python_error(error);
  interrupt_->restore();
  interrupt_.reset();
}

void PythonFront::raise(const core::Exception& error) {
  const py::gil_scoped_acquire gil;
  set_error(error);
  python_error thrown;  // torch passes it on to the program that called backward()
  thrown.persist();
  throw thrown;
}

void PythonFront::throw_to_python(const core::Exception& error) {
  set_error(error);
  throw py::error_already_set();
}

core::Error error_of_python(const py::error_already_set& raised) {
  const py::object value = raised.value();
  const std::string text = py::str(value).cast<std::string>();
  if (raised.matches(error_class())) return {core::Error::Code::invalid, text};
  const std::string type = py::str(raised.type().attr("__name__")).cast<std::string>();
  return {core::Error::Code::invalid, "gradtune: " + type + ": " + text};
}

void set_python_error(const core::Exception& error) {
  const py::object type = error_class();
  const py::object value = type(error.what(), std::string(core::to_string(error.code())));
  PyErr_SetObject(type.ptr(), value.ptr());
}

}  // namespace gradtune
