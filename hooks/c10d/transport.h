// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The choice of what carries gradients between ranks, by the option `collectives` and the user's process group. With
// `auto` it is what the group itself would use for gradients on their device, so that the baseline is what DDP does on
// that group. It is a pure decision. All ranks must come to the same one, which Peers checks.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/result.h"

namespace gradtune {

// Values of the option.
enum class Collectives : uint8_t { automatic, gloo, nccl };

// - gloo: through memory of the host
// - nccl: from memory of a CUDA device
// - given: groups of the user's make_group, through memory of the host
enum class Transport : uint8_t { gloo, nccl, given };

struct TransportFacts {
  Collectives option = Collectives::automatic;
  std::string device = "cpu";   // the type of the device with the gradients
  std::string backend = {};     // the name of the process group's backend for that device; empty: it has none
  bool has_make_group = false;  // the user makes gradtune's groups
  bool is_paced = false;        // an emulated link paces groups through memory of the host
  std::string no_nccl = {};     // why this build can not use NCCL; empty: it can
};

struct TransportChoice {
  Transport transport = Transport::gloo;
  std::string why = {};  // for people

  bool operator==(const TransportChoice&) const = default;
};

// An error says why the option can not be followed, and which values are allowed.
core::Result<TransportChoice> choose_transport(const TransportFacts& facts);

// For people: "nccl (the process group's backend for cuda)". Texts of equal transports are equal up to the blank.
std::string to_text(const TransportChoice& choice);

}  // namespace gradtune
