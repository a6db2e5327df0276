// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/support/device.h"

#include <dlfcn.h>
#include <torch/cuda.h>

#include <stdexcept>

torch::Device open_device(const std::string& name) {
  const torch::Device device(name);
  if (device.is_cpu()) return device;
  if (!device.is_cuda()) throw std::runtime_error("--device is \"" + name + "\"; allowed are cpu, cuda and cuda:N");
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::runtime_error("--device is \"" + name +
                             "\", and LibTorch's CUDA library can not be loaded: " + dlerror());
  }
  const auto count = static_cast<int>(torch::cuda::device_count());
  const int index = device.has_index() ? device.index() : 0;
  if (index >= count) {
    throw std::runtime_error("--device is \"" + name + "\", and LibTorch sees " + std::to_string(count) +
                             " CUDA devices");
  }
  return {device.type(), static_cast<torch::DeviceIndex>(index)};
}
