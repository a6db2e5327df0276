// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/program_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradtune::exec {

using core::Space;

int64_t ProgramMemory::bytes_with(const Program& program, Space space) const {
  return std::max(pools_[space].bytes(), program.pool_bytes[space]) +
         std::max(states_[space].bytes(), 2 * program.states_bytes[space]);
}

// The memory is zeros, so that page faults occur here and not in a measured step.
void ProgramMemory::grow(const Program& program, Space space, Growth& growth) const {
  compress::Queue* const queue = space == Space::host ? nullptr : spaces_.queue();
  const int64_t pool_bytes = program.pool_bytes[space];
  if (pool_bytes > pools_[space].bytes()) {
    // Pinned memory is touched when it is pinned.
    const bool is_plain = space == Space::host && allocators_[space] == nullptr;
    growth.pools[space] = is_plain ? AlignedBytes::zeros_but(pool_bytes, program.untouched)
                                   : AlignedBytes::zeros(pool_bytes, allocators_[space]);
  }
  growth.states[space] = states_[space].larger(program.states_bytes[space], allocators_[space], queue);
  if (growth.states[space] && queue != nullptr) queue->mark().wait(spaces_.timeout_ms).value();
}

void ProgramMemory::take(Growth growth) noexcept {
  for (const Space space : core::kSpaces) {
    if (growth.pools[space].bytes() > 0) pools_[space] = std::move(growth.pools[space]);
    if (growth.states[space]) states_[space] = std::move(*growth.states[space]);
  }
}

void ProgramMemory::clear_states() {
  states_[Space::host].clear();
  if (states_[Space::cuda].bytes() > 0) {
    compress::Queue& queue = *spaces_.queue();
    states_[Space::cuda].clear(queue);
    queue.mark().wait(spaces_.timeout_ms).value();
  }
  state_at_home_ = AlignedBytes();
}

std::span<std::byte> ProgramMemory::state_at_home(const Program& program) {
  const core::PerSpace<int64_t>& bytes = program.states_bytes;
  const auto here = static_cast<size_t>(bytes[Space::host]);
  std::byte* const current = states_[Space::host].current();
  if (bytes[Space::cuda] == 0) return {current, here};
  if (state_at_home_.bytes() == 0) {
    state_at_home_ = AlignedBytes::zeros(program.state_bytes, allocators_[Space::host]);
    if (here > 0) std::memcpy(state_at_home_.data(), current, here);
    compress::Queue& queue = *spaces_.queue();
    queue.copy(state_at_home_.data() + here, states_[Space::cuda].current(), bytes[Space::cuda]);
    queue.mark().wait(spaces_.timeout_ms).value();
  }
  return {state_at_home_.data(), static_cast<size_t>(state_at_home_.bytes())};
}

core::Status ProgramMemory::bring(const Program& program) {
  if (state_at_home_.bytes() == 0) return {};
  const auto here = static_cast<size_t>(program.states_bytes[Space::host]);
  if (here > 0) std::memcpy(states_[Space::host].current(), state_at_home_.data(), here);
  compress::Queue& queue = *spaces_.queue();
  queue.copy(states_[Space::cuda].current(), state_at_home_.data() + here, program.states_bytes[Space::cuda]);
  core::Status there = queue.mark().wait(spaces_.timeout_ms);
  state_at_home_ = AlignedBytes();
  return there;
}

void ProgramMemory::swap_states() {
  for (States& states : states_.values) states.swap();
}

void ProgramMemory::describe(BucketMemory& memory) const {
  for (const Space space : core::kSpaces) {
    memory.pools[space] = pools_[space].data();
    memory.state[space] = states_[space].current();
    memory.state_next[space] = states_[space].next();
  }
}

}  // namespace gradtune::exec
