// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Training in rounds, for ranks that are far apart. Each rank updates its own parameters, and every few updates an
// exchange averages what they changed.
//
//   auto optimizer = gradtune::rounds(adamw, *model, group, {.most = 8});
//   ...                     // train as with wrap(): step() exchanges when a round ends
//   optimizer.end_round();  // all ranks have the same parameters from here on
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gradtune/gradtune.h"

namespace gradtune {

struct RoundOptions {
  // The most updates between two exchanges, from 1 to 1,000,000. It has to be set, since with more of them, and on more
  // ranks, a model may learn less (README.md has figures).
  int64_t most = 0;
  // The fewest updates, from 1 to `most`. With more than 1, rounds begin after the dense steps on any link.
  int64_t least = 1;
  // The updates that a rank makes while an exchange is under way, below `least`. They are added to the result of the
  // exchange, so they are not lost, but the exchange is of older parameters, which costs accuracy (README.md has
  // figures). 0: it ends before the next update. None: chosen with the number of updates, up to half of them.
  std::optional<int64_t> delay = 0;
  // The parts of the model that are exchanged one after the other, from 1 to 64, spread evenly over a round (Douillard
  // et al., Streaming DiLoCo, 2025). An exchange of a part is short, so a delay is too, and costs less accuracy. Then
  // `delay` is at most least / fragments, or chosen up to the updates between two exchanges. Each part has threads and
  // connections of its own. Messages are of the first one; files of the others are named like
  // job.fragment-2.jsonl.
  int64_t fragments = 1;
  // Synchronous steps before the first round, at least 1.
  int64_t dense_steps = 80;
  // The outer step: SGD with Nesterov momentum, whose gradient is the mean change of the parameters.
  double outer_lr = 0.8, outer_momentum = 0.3;
  // A rank that is faster than the slowest one makes more updates in a round, at most `most`, and changes are weighted
  // with the numbers of updates. Train for a number of rounds then, as ranks differ in updates. Needs a delay of 0.
  bool uneven = false;
};

// An optimizer whose ranks exchange in rounds. Not copyable, not thread-safe.
class RoundsOptimizer {
 public:
  RoundsOptimizer(RoundsOptimizer&&) noexcept;
  RoundsOptimizer& operator=(RoundsOptimizer&&) noexcept;
  ~RoundsOptimizer();

  void zero_grad();
  // Updates this rank's parameters, and ends the round if it has all of its updates.
  void step();
  // Ends the round with the updates that it has, so that all ranks have equal parameters. All ranks call it, before a
  // checkpoint, an evaluation or the end, also if they made different numbers of updates. Returns false if there was
  // nothing to exchange.
  bool end_round();

  struct Progress {
    bool synchronous = true;                // the dense steps, or an exchange at each step takes no more than its share
    int64_t rounds = 0;                     // ended
    int64_t updates = 0;                    // since the last exchange of the round before began
    int64_t updates_a_round = 1;            // as chosen for the round under way
    int64_t delay = 0;                      // updates during which each of its exchanges will be under way
    double exchange_ms = 0, update_ms = 0;  // of the last round, on the slowest rank: an exchange, and one update
    // Rounds after which a parameter was NaN or infinite on some rank. Parameters and buffers then go back to what was
    // last exchanged, and what is not finite in the optimizer's state on such a rank becomes 0. Ten in a row are an
    // error.
    int64_t lost = 0;
  };
  Progress progress() const;
  // The result of tuning the exchange, see Optimizer::Result. Its steps are rounds, with the computation of one update.
  // With several fragments it is decided if all are, and describes the buckets of each; the rest is the first one's.
  Optimizer::Result result() const;
  // As in Optimizer, for the exchange between rounds.
  void export_strategy(const std::string& path);
  // As in Optimizer; all ranks call them. Saving ends the round first, so save the model and the optimizer afterwards.
  // The checkpoint also has the outer momentum, in a file rounds-STEP.pt. A new job that loads it needs no dense steps
  // if they were done. Load the model and the optimizer before the call of rounds().
  void save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& folder);

 private:
  friend RoundsOptimizer rounds(torch::optim::Optimizer&, torch::nn::Module&,
                                const c10::intrusive_ptr<c10d::ProcessGroup>&, const RoundOptions&, const Options&);
  class State;
  explicit RoundsOptimizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Trains synchronously for `dense_steps` steps, as wrap() does. From then on it switches to rounds as soon as an
// exchange at each step takes more than a twentieth of the step's computation. A round has the fewest updates, up to
// `most`, for which ranks wait for an exchange no longer than that; with a delay, updates go on beside it. With
// most = 1 training stays synchronous.
//
// Options are those of wrap(), and hold for the exchange between rounds too. Lossy compressors need no dense steps of
// their own there. The journal of the rounds replaces that of the dense steps. Throws as wrap() does, and for options
// that are not allowed.
RoundsOptimizer rounds(torch::optim::Optimizer& optimizer, torch::nn::Module& module,
                       const c10::intrusive_ptr<c10d::ProcessGroup>& group, const RoundOptions& rounds = {},
                       const Options& options = {});

}  // namespace gradtune
