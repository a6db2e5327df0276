// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/python_lists.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>

#include "python/python_front.h"

namespace gradtune {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

template <typename Body>
auto asked(Body body) {
  const py::gil_scoped_acquire gil;
  try {
    return body();
  } catch (const py::error_already_set& raised) {
    throw core::Exception(error_of_python(raised));
  }
}

Stepper::Takes takes_of(const std::string& name) {
  if (name == "sparse") return Stepper::Takes::sparse;
  return name == "as before" ? Stepper::Takes::as_before : Stepper::Takes::any;
}

}  // namespace

PythonLists::PythonLists(py::object source, std::shared_ptr<RegistrationCount> count)
    : source_(std::move(source)),
      count_(std::move(count)),
      identity_(reinterpret_cast<const void*>(source_.attr("identity")().cast<uintptr_t>())) {}

PythonLists::~PythonLists() {
  const py::gil_scoped_acquire gil;
  source_ = py::object();
}

std::vector<NamedTensor> PythonLists::named(const char* method) {
  return asked([&] {
    std::vector<NamedTensor> all;
    for (const py::handle item : source_.attr(method)()) {
      auto [name, tensor] = item.cast<std::pair<std::string, at::Tensor>>();
      all.push_back({std::move(name), std::move(tensor)});
    }
    return all;
  });
}

std::vector<Stepper::Group> PythonLists::groups() {
  return asked([&] {
    std::vector<Stepper::Group> all;
    for (const py::handle item : source_.attr("groups")()) {
      auto [name, parameters, momentum, is_sgd, options, takes] =
          item.cast<std::tuple<std::string, std::vector<at::Tensor>, std::string, bool, Pairs, std::string>>();
      all.push_back({.name = std::move(name),
                     .parameters = std::move(parameters),
                     .momentum = std::move(momentum),
                     .family = is_sgd ? core::OptimizerFamily::sgd : core::OptimizerFamily::adaptive,
                     .options = std::move(options),
                     .takes = takes_of(takes)});
    }
    return all;
  });
}

void PythonLists::check() {
  asked([&] {
    source_.attr("check")();
    return true;
  });
}

}  // namespace gradtune
