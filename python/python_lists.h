// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Parameters, buffers and groups of a Python model and its optimizers, as gradtune/_trained.py gives them. It keeps
// no user objects alive except tensors, because Python's collector cannot see a cycle through C++.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "hooks/trained_lists.h"

namespace gradtune {

// Counts registrations in the model. May be used from any thread.
struct RegistrationCount {
  std::atomic<uint64_t> value{0};
};

class PythonLists final : public TrainedLists {
 public:
  // `source` is a gradtune._trained.Trained, and `count` is its counter. Both must be called with the GIL held.
  PythonLists(py::object source, std::shared_ptr<RegistrationCount> count);
  ~PythonLists() override;

  // These take the GIL. A Python exception is thrown as core::Exception.
  std::vector<NamedTensor> parameters() override { return named("parameters"); }
  std::vector<NamedTensor> buffers() override { return named("buffers"); }
  std::vector<Stepper::Group> groups() override;
  void check();  // throws if a check that only Python can make fails

  const void* identity() const override { return identity_; }
  std::string_view advice() const override { return "call refresh() of the wrapped optimizer"; }
  uint64_t version() override { return count_->value.load(std::memory_order_relaxed); }

 private:
  std::vector<NamedTensor> named(const char* method);

  py::object source_;
  const std::shared_ptr<RegistrationCount> count_;
  const void* identity_;
};

}  // namespace gradtune
