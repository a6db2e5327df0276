// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fake_kernels.h"

#include <utility>

#include "tests/engine/comm/fake_nccl.h"
#include "tests/engine/exec/host_kernels.h"
#include "tests/hooks/fake_device.h"

namespace gradtune::test {
namespace {

class FakeKernels final : public exec::HostKernels {
 public:
  void ask(compress::Queue& queue, std::function<void()> work) const override {
    static_cast<comm::FakeNcclStream*>(compress::device(queue).stream())->ask(std::move(work));
  }
  std::byte* reach(const void* address) const override { return reach_of_streams(address); }
};

}  // namespace

std::unique_ptr<exec::Kernels> fake_kernels() { return std::make_unique<FakeKernels>(); }

}  // namespace gradtune::test
