// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/alike.h"

#include <algorithm>
#include <string>
#include <vector>

#include "hooks/shared_state.h"

namespace gradtune {
namespace {

// The numbers of the optimizers; bit i stands for optimizer i.
std::string names_of(uint64_t optimizers) {
  std::string names;
  for (int i = 0; i < 64; ++i) {
    if ((optimizers >> i & 1) != 0) names += (names.empty() ? "" : ", ") + std::to_string(i);
  }
  return names.empty() ? "none" : names;
}

// The first rank on which other optimizers stepped than on rank 0; there must be one.
std::string who_stepped(const std::vector<uint64_t>& optimizers) {
  const auto other = std::ranges::find_if(optimizers, [&](uint64_t each) { return each != optimizers[0]; });
  return "of the optimizers, rank " + std::to_string(other - optimizers.begin()) + " stepped " + names_of(*other) +
         " since the backward pass before, rank 0 " + names_of(optimizers[0]);
}

std::string who_is_in_another_step(const std::vector<uint64_t>& steps) {
  std::string who;
  for (size_t r = 0; r < steps.size(); ++r) {
    if (steps[r] == steps[0]) continue;
    who += (who.empty() ? "" : ", ") + ("rank " + std::to_string(r) + " is in step " + std::to_string(steps[r]));
  }
  if (who.empty()) return who;
  return who + ", rank 0 in step " + std::to_string(steps[0]) +
         ": some rank left out or added a backward pass, a no_sync() or a step()";
}

}  // namespace

core::Error explain_mismatch(const core::Error& mismatch, const Alike& mine, const tuner::StepProtocol& protocol,
                             Model& model, Peers& peers) {
  std::string who;
  try {
    const auto steps = peers.gather(static_cast<uint64_t>(protocol.step()));
    const auto buffers = peers.gather(mine.buffers);
    const auto updated = peers.gather(mine.updated);
    const auto others = peers.gather(protocol.identity());
    who = who_is_in_another_step(steps);
    if (!who.empty()) {
      // all is said
    } else if (!tuner::differing_ranks(buffers).empty()) {
      peers.must_agree("buffers", to_text(describe_buffers(model)));
    } else if (!tuner::differing_ranks(updated).empty()) {
      who = who_stepped(updated);
    } else {
      who = "differs from rank 0: rank " + tuner::differing_ranks(others);
    }
  } catch (const core::Exception& failed) {
    if (failed.code() == core::Error::Code::mismatch) return {failed.code(), failed.what()};
    who = std::string("who differs is not known, as comparing all ranks failed: ") + failed.what();
  }
  return {mismatch.code, mismatch.message + " (" + who + ")"};
}

}  // namespace gradtune
