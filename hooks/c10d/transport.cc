// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/transport.h"

#include <string_view>

namespace gradtune {
namespace {

std::string_view name_of(Transport transport) {
  switch (transport) {
    case Transport::gloo: return "gloo";
    case Transport::nccl: return "nccl";
    case Transport::given: return "make_group";
  }
  return "unknown";
}

core::Error not_over_nccl(const std::string& why) {
  return {core::Error::Code::invalid, "option collectives is \"nccl\", " + why};
}

core::Result<TransportChoice> as_asked(const TransportFacts& facts) {
  if (facts.option == Collectives::gloo) return TransportChoice{Transport::gloo, "option collectives"};
  if (facts.device != "cpu") return TransportChoice{Transport::nccl, "option collectives"};
  return not_over_nccl("which is for parameters on a CUDA device, and these are on the CPU; allowed are auto and gloo");
}

TransportChoice as_the_group(const TransportFacts& facts) {
  const std::string backend = "the process group's backend for " + facts.device;
  if (facts.backend.empty()) return {Transport::gloo, "the process group has no backend for " + facts.device};
  if (facts.backend == "gloo") return {Transport::gloo, backend};
  if (facts.backend == "nccl" && facts.device != "cpu") return {Transport::nccl, backend};
  return {Transport::gloo, backend + " is " + facts.backend + ", of which gradtune can not make groups of its own"};
}

core::Result<TransportChoice> choose(const TransportFacts& facts) {
  if (facts.has_make_group || facts.is_paced) {
    if (facts.option == Collectives::nccl) {
      return not_over_nccl(std::string("and ") + (facts.is_paced ? "GRADTUNE_PACING_MBIT paces" : "make_group makes") +
                           " other communicators; allowed is one of both");
    }
    if (facts.has_make_group) return TransportChoice{Transport::given, "it makes gradtune's groups"};
    if (facts.option == Collectives::automatic) {
      return TransportChoice{Transport::gloo, "GRADTUNE_PACING_MBIT paces it"};
    }
  }
  if (facts.option == Collectives::automatic) return as_the_group(facts);
  return as_asked(facts);
}

}  // namespace

core::Result<TransportChoice> choose_transport(const TransportFacts& facts) {
  auto choice = choose(facts);
  if (choice.ok() && choice.value().transport == Transport::nccl && !facts.no_nccl.empty()) {
    return core::Error{core::Error::Code::invalid, "gradients can not go over " + to_text(choice.value()) + ": " +
                                                       facts.no_nccl + "; allowed is gloo (option collectives)"};
  }
  return choice;
}

std::string to_text(const TransportChoice& choice) {
  return std::string(name_of(choice.transport)) + " (" + choice.why + ")";
}

}  // namespace gradtune
