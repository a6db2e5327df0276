// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The stream of the library fake_nccl: another thread does the requested work in order, later.
#pragma once

#include <cstddef>
#include <functional>

namespace gradtune::comm {

class FakeNcclStream {
 public:
  virtual ~FakeNcclStream() = default;
  virtual void ask(std::function<void()> work) = 0;
  // Returns memory given to collectives in a form that the stream's thread can access.
  virtual std::byte* reach(const std::byte* address) { return const_cast<std::byte*>(address); }
};

}  // namespace gradtune::comm
