// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/blocks.h"

#include <limits>

#include "tuner/context.h"

namespace gradtune::tuner {
namespace {

constexpr int kScored = 3;        // steps of a block outside of races, after one that is dropped
constexpr int kPatience = 5;      // extra steps of a candidate's block if some cannot be scored
constexpr int kImported = 20;     // steps of an imported strategy before it is tested
constexpr double kAborted = 2.0;  // factor over the fastest known strategy: slower blocks are cut short

// A much slower baseline gets shorter blocks: the gap is clear with fewer steps, and its steps make tuning slow.
int baseline_block_steps(double times_slower) {
  if (times_slower > 3) return 3;
  return times_slower > 1.5 ? 4 : kBlockSteps;
}

double fastest_ms(const SlotTable& slots) {
  const auto fastest = slots.fastest();
  return fastest ? *slots.at(*fastest).step_ms : std::numeric_limits<double>::infinity();
}

}  // namespace

Block opening_block() { return {.slot = kImportedSlot, .scored = kImported - 1, .patience = kPatience}; }

Block trial_block(const Context& context, int32_t slot) {
  if (context.baselines.contains(slot)) return {.slot = slot, .scored = kScored};
  return {.slot = slot, .scored = kScored, .limit_ms = kAborted * fastest_ms(context.slots), .patience = kPatience};
}

Block paired_block(const Context& context, int32_t slot) {
  if (slot == context.baselines.faster) return {.slot = slot, .scored = tested_block(context, slot).scored};
  return {
      .slot = slot, .scored = kBlockSteps - 1, .limit_ms = kAborted * fastest_ms(context.slots), .patience = kPatience};
}

Block tested_block(const Context& context, int32_t slot) {
  const double baseline_ms = context.slots.at(context.baselines.faster).step_ms.value_or(0);
  const double times_slower = baseline_ms / fastest_ms(context.slots);
  return {.slot = slot, .scored = baseline_block_steps(times_slower) - 1, .patience = kPatience};
}

void run_pairs(Context& context, const std::vector<int32_t>& slots) {
  for (const int32_t slot : slots) context.schedule.add(paired_block(context, slot));
}

void run_tests(Context& context, const std::vector<int32_t>& slots) {
  for (const int32_t slot : slots) context.schedule.add(tested_block(context, slot));
}

}  // namespace gradtune::tuner
