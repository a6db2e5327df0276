// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints as the ranks of a job write and read them together: every rank its own file
// (tuner/files/checkpoint_file.h), so that a folder on each machine's own disk does as well as a shared one. What was
// saved before stays whole until all files of the new checkpoint are on disk; then rank 0 puts `checkpoint.json` in
// place, and the older files go. Leaves open what becomes of what was read.
//
// Where the number of ranks changed, what has to be kept is what is still to be applied to the averaged gradient: the
// sum of the N old ranks' residuals, parked ones included, divided by N. Every one of the new ranks takes the mean of
// the old ranks' residuals, so that their mean is the same. (The new ranks read the old ones' files, some each: all
// have to be in one folder.)
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

// By arena, in the order of the saved strategies; of an arena empty: none.
using AllResiduals = std::vector<std::vector<float>>;

// What a rank's file holds, checked against the model: every strategy fits and every length is right.
struct SavedFile {
  tuner::SavedRank rank;
  core::GradientTable table;  // in the order of the saved strategies
  AllResiduals residuals, parked;
  std::string state;  // of the codecs of the strategy in force
  std::optional<tuner::SavedTuner> tuner;
  tuner::Told told;
};

// The names of sections: residuals of that arena, those that are parked, and the others.
std::string residuals_section(const core::ArenaLayout& layout, size_t arena);
std::string parked_section(const core::ArenaLayout& layout, size_t arena);
constexpr std::string_view kRankSection = "rank", kStateSection = "state", kTunerSection = "tuner",
                           kHistorySection = "history";

// Of the model, and of how its gradients lie in memory, which is how residuals lie.
uint64_t checkpoint_fingerprint(const core::GradientTable& table);

// Collective; throw core::Exception. A failed write leaves what was saved before.
void write_checkpoint(Peers& peers, const std::string& folder, int64_t step, uint64_t model,
                      const tuner::Sections& sections);
tuner::Manifest find_checkpoint(Peers& peers, const std::string& folder, uint64_t model);

// The file of one rank, for the seat of a job with as many ranks. An error names the file.
core::Result<SavedFile> read_rank_file(const std::string& folder, const tuner::Manifest& manifest, int rank,
                                       const core::GradientTable& table);

// Collective: what this rank takes over of a checkpoint of another number of ranks. Without codecs' state, and without
// the tuner, which starts again.
SavedFile read_resized(Peers& peers, const std::string& folder, const tuner::Manifest& manifest,
                       const core::GradientTable& table);

}  // namespace gradtune
