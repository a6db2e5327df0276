// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The costs of collectives and compressors on a job's ranks and links, as plain data: fitted to a run, or written by
// hand. Terms grow with the world size as in the usual algorithms (core::messages, core::travels, core::link_bytes),
// so one table also answers for other world sizes.
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

// A collective over a group of g ranks takes messages(kind, g) * (message_us - wait_us) + travels(kind, g) * wait_us
// + link_bytes * byte_us. The ranks of a node share its link to other nodes (OpSize::link_bytes). The rank's cores
// handle messages one after another, on any link, also while bytes of other collectives pass the link. While a
// message only travels, the cores and the link are free for other collectives, and for other messages of a pairwise
// exchange.
struct CollectiveRate {
  core::Step::Kind kind = core::Step::Kind::all_reduce;
  core::Level level = core::Level::flat;
  double message_us = 0;
  double byte_us = 0;
  double wait_us = 0;  // the part of message_us in which others may use the link

  // Times without bytes: to handle the messages, and while they only travel.
  double messages_us(int group) const { return core::messages(kind, group) * (message_us - wait_us); }
  double travel_us(int group) const { return core::travels(kind, group) * wait_us; }

  bool operator==(const CollectiveRate&) const = default;
};

// The costs of one compressor at one place. Encoding n elements takes encode_us + n * encode_element_us. Decoding
// payloads of b bytes in total into n elements takes decode_us + n * decode_element_us + b * decode_byte_us.
struct CodecRate {
  core::CompressorSpec codec;
  core::Place place = core::Place::device;
  double encode_us = 0, encode_element_us = 0;
  double decode_us = 0, decode_element_us = 0, decode_byte_us = 0;
  // The share of its payloads that was used and sent, if payloads may be shorter than their buffers. 0: not
  // measured; then the compressor's traits give it.
  double use = 0;

  bool operator==(const CodecRate&) const = default;
};

// A copy of n bytes between a device's memory and the host's takes copy_us + n * byte_us.
struct CopyRate {
  double copy_us = 0, byte_us = 0;

  double us(int64_t bytes) const { return copy_us + static_cast<double>(bytes) * byte_us; }
  bool operator==(const CopyRate&) const = default;
};

// The time of a collective over an idle link, measured before the first step: one message, the part of that in which
// the link was free for others, and each further byte; 0: unknown.
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

// Facts about the machines that are known before the first step.
struct Machine {
  IdleLinks idle_links = {};
  Cores cores = {};
  // Collectives over all ranks that the communicator works on; further ones in flight wait for their turn.
  int collectives_at_once = 1;
  OnDevice on_device = {};

  bool operator==(const Machine&) const = default;
};

struct CostTable {
  core::Ranks ranks = {};
  Cores cores = {};  // shared by all work except bytes on the network
  std::vector<CollectiveRate> collectives = {};
  std::vector<CodecRate> codecs = {};
  // The cost of a pass over a gradient. Before a sum of gradients that are not encoded, n elements are scaled to
  // shares of the average. Copying 16-bit gradients to fp32 and back costs the same.
  double scale_us = 0, scale_element_us = 0;
  OnDevice on_device = {};
  CopyRate to_host = {}, to_device = {};  // if gradients are on a device

  bool operator==(const CostTable&) const = default;
};

inline double pass_us(const CostTable& table, int64_t numel) {
  return table.scale_us + static_cast<double>(numel) * table.scale_element_us;
}

// Collectives over all ranks, along a dimension of them or between nodes share the network; the ranks of a node have
// a separate link.
inline bool uses_network(core::Level level) { return level != core::Level::intra; }

// Null if the table does not have that rate. A dimension that was not observed has the rate over all ranks: it uses
// the same links, and terms grow with the number of ranks in the group.
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

// The measured share of that codec's payloads that was used, if it was measured; it is the same at both places.
inline std::optional<double> find_use(const CostTable& table, const core::CompressorSpec& codec) {
  const auto found =
      std::ranges::find_if(table.codecs, [&](const CodecRate& rate) { return rate.codec == codec && rate.use > 0; });
  return found == table.codecs.end() ? std::nullopt : std::optional(found->use);
}

}  // namespace gradtune::policies
