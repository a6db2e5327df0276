// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Error feedback across strategies: the residuals of one rank, and the decision which of them a strategy carries on,
// parks, drains or frees.
//
// A bucket that keeps residuals carries on in full those left by its own codecs, and parks those left by others. A
// bucket that keeps none leaves them where they are. Once a strategy is committed, residuals that it does not carry
// on drain in the following steps (draining.h). When nothing is left, and no ready strategy needs it, their memory
// is freed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/exec/carried.h"
#include "engine/exec/compute.h"
#include "engine/exec/findings.h"
#include "engine/exec/memory.h"
#include "engine/exec/program.h"
#include "engine/exec/residual_owners.h"
#include "engine/exec/spaces.h"

namespace gradtune::exec {

// Strategies that are ready.
using Slots = std::map<int32_t, std::unique_ptr<Program>>;

class Feedback {
 public:
  explicit Feedback(const Spaces& spaces) : spaces_(spaces), residuals_(spaces.allocators()) {}

  // Puts no strategy in force. Residuals are kept if the elements are the same.
  void set_gradients(const Arenas& arenas, bool are_same);

  // The residuals that this program needs beside those that are ready.
  Residuals::Parts needed_by(const Program& program, const Slots& ready) const;
  core::PerSpace<int64_t> bytes_with(const Residuals::Parts& parts) const {
    return residuals_.bytes_after(arenas_, parts);
  }
  void allocate(const Residuals::Parts& parts) { residuals_.allocate(arenas_, parts); }

  // Puts a program in force on trial, then for good.
  void run(const Program& program);
  void commit();
  // Frees residuals if no bucket has any left to drain, and no ready strategy keeps some.
  void free_idle(const Slots& ready);

  // Copies the residuals to the spaces where the program in force works; `carry` brings them home.
  core::Status bring();
  void carry(const Residuals::Parts& parts, Carried& carried);

  // The functions below are about a step.

  // True if residuals of earlier strategies are to be added to the bucket's gradient.
  bool owes(int32_t bucket) const;
  // Adds a share of them.
  void drain(int32_t bucket, const BucketMemory& memory, compress::Queue& queue, Findings& findings);
  // Called if the step counts, with what each bucket found.
  void settle(std::span<const Findings> findings, const Slots& ready);

  // Fills in the residuals of a bucket.
  void describe(int32_t bucket, BucketMemory& memory) const;
  Residuals& residuals() { return residuals_; }
  const Residuals& residuals() const { return residuals_; }

 private:
  void leave() { residuals_.leave(*program_, spaces_.queue(), spaces_.timeout_ms).value(); }
  void park_others();

  const Spaces spaces_;
  Arenas arenas_{};
  Residuals residuals_;
  ResidualOwners holders_;
  const Program* program_ = nullptr;  // in force
  struct BucketDrain {
    bool is_due = false, is_parked_due = false;
  };
  std::vector<BucketDrain> drains_;  // per bucket of the program in force
  bool is_committed_ = false;
};

}  // namespace gradtune::exec
