// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Small models, their gradients and their arenas, and every option, for tests of executors. Gradients are written
// and read as flat vectors, tensor after tensor in the table's order, in any layout of the arenas.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/arenas.h"
#include "engine/core/gradient_table.h"
#include "engine/core/rng.h"
#include "engine/core/strategy.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

class Device;

using Values = std::vector<float>;

// Selects residuals: those that the strategy in force feeds back, those that are parked, or the sum.
enum class Which : uint8_t { all, current, parked };

// Tensors are matrices, as nearly square as their sizes allow, or vectors if the size is prime.
core::GradientTable make_table(const std::vector<std::pair<int64_t, core::DType>>& tensors);

// The same with all gradients on a device.
core::GradientTable on_device(core::GradientTable table);

// A table with three dtypes in turn, and sizes that no block, shard or alignment divides.
core::GradientTable mixed_table();

// Uniform in [-1, 1), exact in each tensor's dtype; about a tenth are zero.
Values random_gradient(const core::GradientTable& table, core::Rng& rng);

// A strategy from the printed form of its option, with buckets of at most `bytes` bytes.
core::Strategy make_strategy(const core::GradientTable& table, const std::string& option, int64_t bytes, int in_flight);

// Every family of programs with every compressor that it allows, at one place.
std::vector<std::string> all_options(core::Place place);

// A random strategy with these options: partition, an option for each bucket, and any legal order of all
// collectives.
core::Strategy random_strategy(const core::GradientTable& table, const std::vector<std::string>& options,
                               core::Rng& rng);

class GradientArenas {
 public:
  // In memory of that device, if the table says so.
  explicit GradientArenas(const core::GradientTable& table, Device* device = nullptr);

  const core::GradientTable& table() const { return table_; }
  const Arenas& arenas() const { return arenas_; }

  // On a device these use the device's queue of the calling thread: in order with its work, and reading waits.
  void write(const Values& gradient);
  Values read() const;

  // The residuals of that program's strategy, which is in force and compiled for memory of the host.
  Values read(const Program& program, const Residuals& residuals, Which which = Which::all) const;

 private:
  std::byte* here(size_t arena) const;  // the place of its values on the host
  template <typename Visit>
  void visit(Visit visit) const;  // (position in the flat vector, arena, position there)

  const core::GradientTable table_;
  const core::ArenaLayout layout_;
  Device* const device_;
  std::vector<AlignedBytes> memory_;
  std::vector<AlignedBytes> pinned_;  // pinned memory, as long as that on a device
  Arenas arenas_;
};

}  // namespace gradtune::exec
