// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What an executor has besides threads and time: the strategies that are ready on one rank, one of them in force, the
// memory that they work on, and what the operations of a step found. Executors with real threads and simulated ones
// share it and differ in what pumps the core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/core/measurement.h"
#include "engine/exec/compute.h"
#include "engine/exec/device.h"
#include "engine/exec/findings.h"
#include "engine/exec/memory.h"
#include "engine/exec/program.h"
#include "engine/exec/residual_owners.h"

namespace gradtune::exec {

// What goes from step to step, as it lies in memory: to be read for a checkpoint, or overwritten from one. Holds until
// the next step or change of strategies.
struct Carried {
  uint32_t* step = nullptr;                      // that random numbers depend on
  std::vector<std::span<float>> residuals = {};  // by arena, in its order; all are empty while nothing needs them
  std::vector<std::span<float>> parked = {};     // the same of those that are parked (memory.h)
  ResidualOwners* holders = nullptr;             // of the residuals
  std::span<std::byte> state = {};               // of the codecs of the strategy in force
};

class Workspace {
 public:
  // The seed is that of random compressors. The limit is that of copies between steps.
  Workspace(const core::Seat& seat, uint64_t seed, Platform platform = {}, int64_t timeout_ms = 300'000);

  // The gradients to work on, in the table's order. Drops all slots. Residuals are kept for a table that only changed
  // times.
  void set_gradients(const core::GradientTable& table, const Arenas& arenas);

  // Strategies in slots, between steps. What is ready is compiled and has its memory; an error leaves all as it was.
  core::Result<std::unique_ptr<Program>> compile(int32_t slot, const core::Strategy& strategy) const;
  core::Status add(int32_t slot, std::unique_ptr<Program> program, int64_t memory_budget_bytes);
  void drop(int32_t slot);
  // On trial. Residuals of elements whose bucket keeps none stay where they are. Those of elements whose bucket keeps
  // some are carried on in full where the same codecs left them; where others did they are parked, and the bucket
  // begins with none.
  void run(int32_t slot);
  // For good: what is not carried on drains in the steps that follow (draining.h). When nothing is left, and no
  // strategy that is ready needs it, its memory is freed.
  void commit(int32_t slot);

  // In force; null before the first run.
  const Program* program() const { return program_; }
  const BucketProgram& bucket(int32_t bucket) const { return program_->buckets[static_cast<size_t>(bucket)]; }
  const Op& op(int32_t bucket, int32_t op) const { return this->bucket(bucket).ops[static_cast<size_t>(op)]; }
  const std::vector<Piece>& pieces(int32_t tensor) const {
    return program_->pieces_of_tensor[static_cast<size_t>(tensor)];
  }

  // A step, which allocates nothing: begin, every piece arrived, every operation, conclude, conclude_late for each
  // bucket that is due at the next forward pass, settle.
  void begin();

  // Before a step begins, where programs work on a device: takes residuals and state to it.
  core::Status bring();

  // A piece of that tensor is ready. Returns whether its bucket is complete.
  bool arrived(int32_t tensor, const Piece& piece, const Arrived& arrived, compress::Queue& queue);
  // Whether pieces of that bucket are scaled as they arrive, in the pass that brings them there or while they are in a
  // cache. Then nothing is left for its first operation, which scales.
  bool scales_arrivals(int32_t bucket) const;

  // From any thread, operations of different buckets at once.
  void compute(int32_t bucket, int32_t op, compress::Queue& queue);
  comm::Collective collective(int32_t bucket, int32_t op, int64_t timeout_ms) const;

  // The step's control collective: the word, reduced by maximum, and behind it what workspaces have to know of each
  // other. After every bucket's first operation; the word is the caller's again once control_done() has returned, which
  // writes the reduced one there.
  comm::Collective control(std::span<double> word, int64_t timeout_ms);
  void control_done();

  // The rows of a tensor's average once its bucket is done, and how many of them are this rank's own; none where its
  // bucket works on the gradient. They stay until the next step begins.
  struct Listed {
    const compress::RowBuffer* rows = nullptr;  // null: none
    const core::RowOrder* order = nullptr;
    int64_t width = 0, own = 0;
  };
  Listed listed(int32_t tensor) const;
  // Writes such an average to its place in the arena. Of other tensors, and where the gradient came dense, it is there
  // once the step is concluded.
  void lay_out_average(int32_t tensor);

  // Of an operation that is done.
  const compress::Verdict& verdict(int32_t bucket, int32_t op) const {
    return verdicts_[static_cast<size_t>(this->bucket(bucket).first_op + op)];
  }
  // Of a bucket on a device, once the host was told of an operation's end: what was found up to there.
  void take_report(int32_t bucket);
  // What that bucket's compression lost on this rank, in the step that was concluded last; of a bucket that is due at
  // the next forward pass in the one that was settled last.
  core::BucketLoss loss(int32_t bucket) const { return losses_[static_cast<size_t>(bucket)]; }
  // Whether residuals were added to the gradients of that bucket in the step, on this rank.
  bool drained(int32_t bucket) const { return findings_[static_cast<size_t>(bucket)].drained.added; }

  // With whether all ranks were `finite` by the control word, once that and all buckets that are due at the end of
  // backward are done. Returns whether the step counts. Averages may still be too large for the gradients' type, which
  // all ranks find alike as they have the same bits. Where the step does not count, its gradients are, with the same
  // bits on all ranks:
  //   as they are   in buckets that carry what is not finite (BucketProgram): it is where plain sums have it
  //   NaN           in all others, and in all where residuals were drained on some rank, which they then hold and are
  //                 still owed: so all ranks and every scaler see it
  // A payload that can not be decoded is what becomes of values that are not finite; it is an error when all ranks
  // were, and in a bucket that carries them.
  core::Result<bool> conclude(bool finite, compress::Queue& queue);

  // The same of a bucket that is due at the next forward pass, once it is done. That it is not finite where all ranks
  // were is an error: they have agreed on the step. A second call does nothing.
  core::Status conclude_late(int32_t bucket, compress::Queue& queue);

  // Of a step that counts, what became of residuals and of codecs' state holds from now on; of another both stay as
  // before it.
  void settle();

  // Between steps, with a strategy in force. `residuals`, `parked`: allocates them if need be.
  Carried carried(bool residuals = false, bool parked = false);

  Residuals& residuals() { return residuals_; }
  const Residuals& residuals() const { return residuals_; }
  int64_t memory_bytes(core::Space space = core::Space::host) const {
    return pools_[space].bytes() + residuals_.bytes()[space] + states_[space].bytes();
  }

 private:
  const Program* find(int32_t slot) const;
  core::Status reserve(const Program& program, int64_t memory_budget_bytes);
  core::PerSpace<int64_t> needed_by(const Program& program) const;
  compress::Queue* device_queue() const;
  BucketMemory memory_of(int32_t bucket) const;
  std::byte* report(int32_t bucket, core::Space space) const;  // findings, and verdicts behind them
  std::span<std::byte> carried_state();
  void begin_bucket(int32_t bucket, Findings& findings, compress::Queue& queue);
  bool owes(int32_t bucket) const;
  bool is_balanced(int32_t bucket) const;  // in this step
  void scale_piece(const Piece& piece, const std::byte* from, std::byte* to, compress::Queue& queue);
  bool is_finite(int32_t bucket) const;
  core::Status rejection(int32_t bucket, bool finite) const;
  void poison(int32_t bucket, compress::Queue& queue);
  void lay_out(int32_t bucket);
  bool came_dense(int32_t bucket) const;
  void write_list(int32_t bucket);
  void keep_loss(int32_t bucket);
  void settle_residuals();
  void take_residuals();
  bool needs_parked(const Program& program) const;
  void free_idle_residuals();

  const core::Seat seat_;
  const uint64_t seed_;
  const Platform platform_;
  const int64_t timeout_ms_;
  core::GradientTable table_;
  Arenas arenas_{};
  std::map<int32_t, std::unique_ptr<Program>> slots_;
  const Program* program_ = nullptr;
  const Allocators allocators_;
  core::PerSpace<AlignedBytes> pools_;
  Residuals residuals_;
  ResidualOwners holders_;
  core::PerSpace<States> states_;
  AlignedBytes state_at_home_;  // of all spaces; as long as it is not empty, it is what holds

  struct BucketDrain {
    bool is_due = false, is_parked_due = false;
  };
  std::vector<BucketDrain> drains_;  // per bucket of the strategy in force
  bool is_committed_ = false;
  std::vector<std::unique_ptr<RowState>> rows_;  // per bucket of the strategy in force; null: works on the gradient

  uint32_t step_ = 0;  // steps that were settled as finite: on all ranks the same ones

  // Of the step.
  std::vector<int32_t> missing_tensors_;                // per bucket
  std::vector<Findings> findings_;                      // per bucket
  std::vector<compress::Verdict> verdicts_;             // per operation
  std::vector<std::optional<core::Error>> rejections_;  // per bucket: a payload that could not be decoded
  std::vector<core::BucketLoss> losses_;                // per bucket
  std::vector<std::optional<Total>> left_;              // per bucket: residuals of the step before; none: not known
  bool counts_ = false;                                 // once it was concluded
  std::vector<bool> is_concluded_;                      // per bucket that is due at the next forward pass
  std::vector<double> control_;  // the word, and whether residuals were drained: of this rank, then of any
  std::span<double> word_;
};

// Numbers that a workspace sends behind the control word.
constexpr int kOwnControlWords = 1;

// Tokens by which completions of a step's collectives are known.
constexpr uint64_t kControlToken = ~uint64_t{0};
constexpr uint64_t token_of(int32_t bucket, int32_t op) {
  return static_cast<uint64_t>(static_cast<uint32_t>(bucket)) << 32 | static_cast<uint32_t>(op);
}
constexpr int32_t bucket_of(uint64_t token) { return static_cast<int32_t>(token >> 32); }
constexpr int32_t op_of(uint64_t token) { return static_cast<int32_t>(token & 0xffffffffU); }

// The error of a collective, with its name: "a collective of bucket 3 failed: ...".
core::Error named(uint64_t token, const core::Error& error);

}  // namespace gradtune::exec
