// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What the library fake_nccl takes for a stream: work that it is asked for is done in order, later, by another thread.
#pragma once

#include <cstddef>
#include <functional>

namespace gradtune::comm {

class FakeNcclStream {
 public:
  virtual ~FakeNcclStream() = default;
  virtual void ask(std::function<void()> work) = 0;
  // How the stream's thread reaches memory that collectives were given.
  virtual std::byte* reach(const std::byte* address) { return const_cast<std::byte*>(address); }
};

}  // namespace gradtune::comm
