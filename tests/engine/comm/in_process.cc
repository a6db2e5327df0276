// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/comm/in_process.h"

#include <array>
#include <cstring>
#include <vector>

#include "engine/comm/add_up.h"

namespace gradtune::comm {
namespace {

using Root = core::StepTraits::Root;

const std::byte* input_of(const Collective& call) {
  return core::traits_of(call.kind).is_in_place ? call.out : call.in;
}

void reduce_all(std::span<const Collective> calls, size_t part_bytes) {
  const core::StepTraits& traits = core::traits_of(calls[0].kind);
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> targets;
  if (traits.has_input_parts) {
    for (size_t part = 0; part < calls.size(); ++part) {
      inputs.clear();
      for (const Collective& call : calls) inputs.push_back(input_of(call) + part * part_bytes);
      add_up(calls[0].type, calls[0].reduction, inputs, std::array{calls[part].out}, calls[0].count);
    }
    return;
  }
  for (const Collective& call : calls) inputs.push_back(input_of(call));
  if (traits.root == Root::receives) {
    targets = {calls[static_cast<size_t>(calls[0].root)].out};
  } else {
    for (const Collective& call : calls) targets.push_back(call.out);
  }
  add_up(calls[0].type, calls[0].reduction, inputs, targets, calls[0].count);
}

// Copies only the bytes that have to arrive.
void copy(const Collective& call, const std::byte* from, std::byte* to, size_t bytes) {
  if (call.used_bytes == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto payload = static_cast<size_t>(call.payload_bytes);
  for (size_t at = 0; at < bytes; at += payload) {
    const auto used = static_cast<size_t>(used_bytes(call, from + at));
    std::memcpy(to + at, from + at, used);
    std::memset(to + at + used, 0xa5, payload - used);
  }
}

}  // namespace

void check_legal(const Collective& collective, int size) {
  core::check(core::is_collective(collective.kind), "encode and decode are no collectives");
  core::check(collective.count >= 0, "a collective has at least 0 elements");
  core::check(collective.count == 0 || collective.out != nullptr, "a collective with elements has a place for them");
  core::check(collective.count == 0 || core::traits_of(collective.kind).is_in_place || collective.in != nullptr,
              "this collective needs an input");
  core::check(collective.root >= 0 && collective.root < size, "the root of a collective is a rank of the group");
  core::check(collective.used_bytes == nullptr ||
                  (collective.payload_bytes > 0 &&
                   collective.count * bytes_per_element(collective.type) % collective.payload_bytes == 0),
              "what a rank gives to another one is whole payloads");
  core::check(collective.timeout_ms > 0, "a collective has a deadline that lies ahead");
  if (!collective.among) return;
  const auto& [members, stride] = *collective.among;
  core::check(collective.kind == Collective::Kind::all_gather, "of collectives only all_gather is among some ranks");
  core::check(members > 0 && stride > 0 && size % members == 0 && size / members % stride == 0,
              "subgroups that are alike make up the group");
}

std::string first_difference(std::span<const Collective> calls) {
  const Collective& first = calls[0];
  const std::string name(core::to_string(first.kind));
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    const Collective& call = calls[rank];
    const std::string who = " on rank 0 and rank " + std::to_string(rank);
    if (call.kind != first.kind) {
      return "ranks called different collectives: " + name + " and " + std::string(core::to_string(call.kind)) + who;
    }
    if (call.type != first.type) return name + " has different types of elements" + who;
    if (call.reduction != first.reduction) return name + " has different reductions" + who;
    if (call.count != first.count) {
      return name + " has " + std::to_string(first.count) + " and " + std::to_string(call.count) + " elements" + who;
    }
    if (call.root != first.root) return name + " has different roots" + who;
    if (call.among != first.among) return name + " is among other ranks" + who;
    if (call.payload_bytes != first.payload_bytes) return name + " has payloads of different sizes" + who;
  }
  return {};
}

void move_data(std::span<const Collective> calls) {
  if (calls[0].count == 0) return;
  const auto part = static_cast<size_t>(calls[0].count * bytes_per_element(calls[0].type));
  const core::StepTraits& traits = core::traits_of(calls[0].kind);
  if (traits.adds_up) return reduce_all(calls, part);
  const auto size = static_cast<int>(calls.size()), root = calls[0].root;
  const core::Subgroup ranks = ranks_of(calls[0], size);
  const auto call_of = [&](int rank) -> const Collective& { return calls[static_cast<size_t>(rank)]; };
  for (int to = 0; to < size; ++to) {
    if (traits.root == Root::receives && to != root) continue;
    for (int index = 0; index < ranks.size; ++index) {
      const int from = ranks.rank_at(index, to);
      if (traits.root == Root::sends && from != root) continue;
      const auto offset = [&](bool has_parts, int of) { return has_parts ? static_cast<size_t>(of) * part : 0; };
      const std::byte* source = input_of(call_of(from)) + offset(traits.has_input_parts, to);
      std::byte* target = call_of(to).out + offset(traits.has_output_parts, index);
      if (target != source) copy(call_of(from), source, target, part);
    }
  }
}

core::Error timed_out(const Collective& collective, std::span<const int> missing) {
  std::string ranks;
  for (const int rank : missing) ranks += (ranks.empty() ? " waiting for rank " : ", ") + std::to_string(rank);
  return {core::Error::Code::timeout, std::string(core::to_string(collective.kind)) + " timed out after " +
                                          std::to_string(collective.timeout_ms) + " ms" + ranks};
}

core::Error lost(int rank, const core::Error& error) {
  return {core::Error::Code::lost, "rank " + std::to_string(rank) + " is lost: " + error.message};
}

}  // namespace gradtune::comm
