// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What collectives and compressors cost on a job's ranks and links, as plain data: fitted from a run, or written down.
// Terms grow with the number of ranks as the usual algorithms do (core::messages, core::travels, core::link_bytes), so
// one table also answers for other numbers of ranks.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/option.h"
#include "policies/cost/core_sharing.h"
#include "policies/cost/inserted_steps.h"
#include "policies/cost/op_sizes.h"

namespace gradtune::policies {

// Over a group of g ranks: messages(kind, g) * (message_us - wait_us) + travels(kind, g) * wait_us + link_bytes *
// byte_us, where the ranks of a node share its link to other nodes (OpSize::link_bytes). Handling messages is for the
// rank's cores to do, one after the other, whatever link they go over, and while bytes of other collectives pass the
// link. While a message only travels, both are free for other collectives, and for other messages of an exchange of
// pairs.
struct CollectiveRate {
  core::Step::Kind kind = core::Step::Kind::all_reduce;
  core::Level level = core::Level::flat;
  double message_us = 0;
  double byte_us = 0;
  double wait_us = 0;  // of message_us, while others may use the link

  // Without bytes: to handle the messages, and while they only travel.
  double messages_us(int group) const { return core::messages(kind, group) * (message_us - wait_us); }
  double travel_us(int group) const { return core::travels(kind, group) * wait_us; }

  bool operator==(const CollectiveRate&) const = default;
};

// Of one compressor at one place. Encoding n elements: encode_us + n * encode_element_us. Decoding payloads of b bytes
// in all into n elements: decode_us + n * decode_element_us + b * decode_byte_us.
struct CodecRate {
  core::CompressorSpec codec;
  core::Place place = core::Place::device;
  double encode_us = 0, encode_element_us = 0;
  double decode_us = 0, decode_element_us = 0, decode_byte_us = 0;
  // The share of its payloads that was used and sent, where they need not be full; 0: not measured, and what the
  // compressor's traits say counts.
  double use = 0;

  bool operator==(const CodecRate&) const = default;
};

// Of a copy of n bytes between a device's memory and the host's: copy_us + n * byte_us.
struct CopyRate {
  double copy_us = 0, byte_us = 0;

  double us(int64_t bytes) const { return copy_us + static_cast<double>(bytes) * byte_us; }
  bool operator==(const CopyRate&) const = default;
};

// What a collective took over links that were idle, as was measured before the first step: one message, how much of
// that the link was free for others, and each byte more; 0: not known.
struct IdleLink {
  double message_us = 0, wait_us = 0, byte_us = 0;

  bool operator==(const IdleLink&) const = default;
};
struct IdleLinks {
  IdleLink flat = {}, inter = {}, intra = {};

  const IdleLink& of(core::Level level) const {
    return level == core::Level::flat ? flat : level == core::Level::inter ? inter : intra;
  }
  bool operator==(const IdleLinks&) const = default;
};

// What is known of the machines before the first step.
struct Machine {
  IdleLinks idle_links = {};
  Cores cores = {};
  int collectives_at_once = 1;  // over all ranks, that the communicator works on; more in flight wait for their turn
  OnDevice on_device = {};

  bool operator==(const Machine&) const = default;
};

struct CostTable {
  core::Ranks ranks = {};
  Cores cores = {};  // that all but what passes the network shares
  std::vector<CollectiveRate> collectives = {};
  std::vector<CodecRate> codecs = {};
  // Of a pass over a gradient: before a sum of gradients that are not encoded n elements become shares of the average.
  // What copies 16-bit gradients to fp32 and back counts as much.
  double scale_us = 0, scale_element_us = 0;
  OnDevice on_device = {};
  CopyRate to_host = {}, to_device = {};  // where gradients are on a device

  bool operator==(const CostTable&) const = default;
};

inline double pass_us(const CostTable& table, int64_t numel) {
  return table.scale_us + static_cast<double>(numel) * table.scale_element_us;
}

// What is over all ranks, along a dimension of them or between nodes shares the network; ranks of a node have a link of
// their own.
inline bool uses_network(core::Level level) { return level != core::Level::intra; }

// Null where the table does not have that rate. Along a dimension that was not seen it is that over all ranks: these
// are the same links, and terms grow with the number of ranks of the group.
inline const CollectiveRate* find_rate(const CostTable& table, core::Step::Kind kind, core::Level level) {
  const auto found = std::ranges::find_if(
      table.collectives, [&](const CollectiveRate& rate) { return rate.kind == kind && rate.level == level; });
  if (found != table.collectives.end()) return &*found;
  return core::is_dimension(level) ? find_rate(table, kind, core::Level::flat) : nullptr;
}
inline const CodecRate* find_rate(const CostTable& table, const core::CompressorSpec& codec, core::Place place) {
  const auto found = std::ranges::find_if(
      table.codecs, [&](const CodecRate& rate) { return rate.codec == codec && rate.place == place; });
  return found == table.codecs.end() ? nullptr : &*found;
}

// The share of that codec's payloads that was used, where it was measured: the same at both places.
inline std::optional<double> find_use(const CostTable& table, const core::CompressorSpec& codec) {
  const auto found =
      std::ranges::find_if(table.codecs, [&](const CodecRate& rate) { return rate.codec == codec && rate.use > 0; });
  return found == table.codecs.end() ? std::nullopt : std::optional(found->use);
}

}  // namespace gradtune::policies
