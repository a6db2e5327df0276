// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints that the ranks of a job write and read together. Every rank has its own file
// (tuner/files/checkpoint_file.h), so the folder may be on each machine's own disk or shared. The previous
// checkpoint stays complete until all files of the new one are on disk. Then rank 0 replaces `checkpoint.json`, and
// the older files are removed. The caller decides how the contents are used.
//
// After a change of the world size, the sum that is still to be applied to the averaged gradient must be kept. It is
// the sum of the N old ranks' residuals, parked ones included, divided by N. Every new rank takes the mean of the
// old ranks' residuals, so their mean is the same. (Each new rank reads some of the old ranks' files, so all files
// must be in one folder.)
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/arenas.h"
#include "engine/core/gradient_table.h"
#include "engine/core/topology.h"
#include "hooks/c10d/peers.h"
#include "tuner/files/checkpoint_file.h"
#include "tuner/files/saved_state.h"

namespace gradtune {

// One entry for each arena, in the order of the saved strategies; an empty entry means no residuals.
using AllResiduals = std::vector<std::vector<float>>;

// The contents of a rank's file, checked against the model: every strategy fits and every length is right.
struct SavedFile {
  tuner::SavedRank rank;
  core::GradientTable table;  // in the order of the saved strategies
  AllResiduals residuals, parked;
  std::string state;  // of the codecs of the strategy in force
  std::optional<tuner::SavedTuner> tuner;
  tuner::Told told;
};

// The names of the sections that hold an arena's residuals and its parked residuals.
std::string residuals_section(const core::ArenaLayout& layout, size_t arena);
std::string parked_section(const core::ArenaLayout& layout, size_t arena);
constexpr std::string_view kRankSection = "rank", kStateSection = "state", kTunerSection = "tuner",
                           kHistorySection = "history";

// A fingerprint of the model and of the memory layout of its gradients, which is also the layout of residuals.
uint64_t checkpoint_fingerprint(const core::GradientTable& table);

// Collective; throws core::Exception. If writing fails, the previous checkpoint stays.
void write_checkpoint(Peers& peers, const std::string& folder, int64_t step, uint64_t model,
                      const tuner::Sections& sections);
tuner::Manifest find_checkpoint(Peers& peers, const std::string& folder, uint64_t model);

// Reads the file of one rank; the job must have the same world size. An error names the file.
core::Result<SavedFile> read_rank_file(const std::string& folder, const tuner::Manifest& manifest, int rank,
                                       const core::GradientTable& table);

// Collective: this rank's part of a checkpoint of another world size. It has no codec state and no tuner, because
// tuning starts again.
SavedFile read_resized(Peers& peers, const std::string& folder, const tuner::Manifest& manifest,
                       const core::GradientTable& table);

}  // namespace gradtune
