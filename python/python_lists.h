// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Parameters, buffers and groups of a Python model and its optimizers, asked of gradtune/_trained.py. It keeps nothing
// of the user's alive but tensors: a cycle through C++ is one that Python's collector can not see.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "hooks/trained_lists.h"

namespace gradtune {

// Counts what was registered in the model. From any thread.
struct RegistrationCount {
  std::atomic<uint64_t> value{0};
};

class PythonLists final : public TrainedLists {
 public:
  // `source` is a gradtune._trained.Trained, `count` the one that it counts with. Both with the GIL held.
  PythonLists(py::object source, std::shared_ptr<RegistrationCount> count);
  ~PythonLists() override;

  // These take the GIL. What Python raises is thrown as core::Exception.
  std::vector<NamedTensor> parameters() override { return named("parameters"); }
  std::vector<NamedTensor> buffers() override { return named("buffers"); }
  std::vector<Stepper::Group> groups() override;
  void check();  // raises for what only Python can tell that it can not be wrapped

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
