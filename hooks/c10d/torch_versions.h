// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// All that differs in C++ between versions of LibTorch, from 2.7 on, with a sentence for each difference.
#pragma once

#include <c10/core/Stream.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "hooks/c10d/launcher.h"

namespace gradtune::versions {

// A std::shared_ptr up to LibTorch 2.11; LibTorch 2.15 counts the owners of a node in the node itself.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::autograd::Variable&>()));

template <typename Stream>
constexpr bool kHasHandle = requires(const Stream& stream) {
  stream.native_handle();
};

// Why this build can not use kernels and NCCL, empty if it can. They need the device's own stream behind a c10::Stream,
// which LibTorch tells from 2.11 on.
constexpr std::string_view kNoStreams =
    kHasHandle<c10::Stream> ? "" : "this build is for LibTorch " TORCH_VERSION ", and 2.11 or later is needed";

// That stream, such as a cudaStream_t; null if it is not known.
template <typename Stream>
void* native_handle(const Stream& stream) {
  if constexpr (kHasHandle<Stream>) {
    return stream.native_handle();
  } else {
    return nullptr;
  }
}

// The store of a group; null if it has none. In LibTorch 2.7 it is for derived classes alone.
template <typename Group>
c10::intrusive_ptr<c10d::Store> store_of(Group& group) {
  if constexpr (requires { group.getStore(); }) {
    return group.getStore();
  } else {
    struct Derived : Group {
      static c10::intrusive_ptr<c10d::Store> of(Group& base) { return base.*(&Derived::store_); }
    };
    return Derived::of(group);
  }
}

// The timeout of a backend's collectives; 0 if it has none. In LibTorch 2.7 each kind of backend has a function of its
// own for it; Gloo's is asked. c10d may throw.
template <typename Backend>
std::chrono::milliseconds timeout_of(Backend& backend) {
  if constexpr (requires { backend.getBackendOptions(); }) {
    const auto options = backend.getBackendOptions();
    return options ? options->timeout : std::chrono::milliseconds(0);
  } else {
    auto* const gloo = dynamic_cast<c10d::ProcessGroupGloo*>(&backend);
    return gloo != nullptr ? gloo->getOptions()->timeout : std::chrono::milliseconds(0);
  }
}

// Options with the devices that GLOO_SOCKET_IFNAME names, or else the one at this host's name. LibTorch 2.7 leaves that
// to its Python part.
template <typename Options = c10d::ProcessGroupGloo::Options>
c10::intrusive_ptr<Options> default_gloo_options(std::chrono::milliseconds timeout) {
  if constexpr (requires { Options::create_default(timeout); }) {
    return Options::create_default(timeout);
  } else {
    auto options = Options::create(timeout);
    std::stringstream names(environment_variable("GLOO_SOCKET_IFNAME").value_or(""));
    for (std::string name; std::getline(names, name, ',');) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
    if (options->devices.empty()) options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    options->threads = 2 * static_cast<int>(options->devices.size());
    return options;
  }
}

// The timeout of the backend's later collectives. LibTorch 2.7 has no function for it.
template <typename Gloo>
void set_timeout(Gloo& gloo, std::chrono::milliseconds timeout) {
  if constexpr (requires { gloo.setTimeout(timeout); }) {
    gloo.setTimeout(timeout);
  } else {
    struct Derived : Gloo {
      static const auto& contexts(Gloo& base) { return base.*(&Derived::contexts_); }
    };
    gloo.getOptions()->timeout = timeout;
    for (const auto& context : Derived::contexts(gloo)) context->setTimeout(timeout);
  }
}

}  // namespace gradtune::versions
