// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives for tensors of the fake device (fake_device.h), for programs that load the device as a library
// (tests/python/devices.py). They go over the group's backend for the CPU through copies on the host. Gloo does so for
// CUDA.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/hooks/fake_device.h"

namespace gradtune::test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Work = c10::intrusive_ptr<c10d::Work>;

Tensors on_host(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.cpu());
  return copies;
}

Work ended(const Tensors& result) {
  const auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                               std::vector<c10::Device>{fake_device()});
  future->markCompleted(c10::IValue(result));
  return c10d::Work::create_from_future(future);
}

// Calls the collective with copies on the host, and copies the outputs back.
Work over(const Tensors& outputs, const Tensors& inputs,
          const std::function<Work(Tensors& outputs, Tensors& inputs)>& collective) {
  Tensors copies = on_host(outputs), brought = on_host(inputs);
  collective(copies, brought)->wait();
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(copies[i]);
  return ended(outputs);
}

class OverHost final : public c10d::Backend {
 public:
  explicit OverHost(c10::intrusive_ptr<Backend> host)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)) {}

  const std::string getBackendName() const override { return host_->getBackendName(); }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return over(tensors, {}, [&](Tensors& copies, Tensors&) { return host_->broadcast(copies, options); });
  }
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return over(tensors, {}, [&](Tensors& copies, Tensors&) { return host_->allreduce(copies, options); });
  }
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return over(outputs.front(), inputs, [&](Tensors& copies, Tensors& brought) {
      std::vector<Tensors> lists{copies};
      return host_->allgather(lists, brought, options);
    });
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return over({output}, {input}, [&](Tensors& copies, Tensors& brought) {
      return host_->_allgather_base(copies.front(), brought.front(), options);
    });
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return over({output}, {input}, [&](Tensors& copies, Tensors& brought) {
      return host_->_reduce_scatter_base(copies.front(), brought.front(), options);
    });
  }
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override {
    return over(outputs, inputs, [&](Tensors& copies, Tensors& brought) {
      return host_->allgather_into_tensor_coalesced(copies, brought, options);
    });
  }
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override {
    return over(outputs, inputs, [&](Tensors& copies, Tensors& brought) {
      return host_->reduce_scatter_tensor_coalesced(copies, brought, options);
    });
  }
  Work barrier(const c10d::BarrierOptions& options) override { return host_->barrier(options); }

 private:
  const c10::intrusive_ptr<Backend> host_;
};

}  // namespace
}  // namespace gradtune::test

// Gives the process group of that name collectives for the device.
extern "C" __attribute__((visibility("default"))) void gradtune_fake_device_collectives(const char* group) {
  const auto found = c10d::resolve_process_group(group);
  found->setBackend(gradtune::test::fake_device().type(), c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<gradtune::test::OverHost>(found->getBackend(c10::DeviceType::CPU)));
}
