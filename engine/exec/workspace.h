// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts of an executor other than threads and time. They are the strategies that are ready on one rank, one of
// them in force; the memory that they work on; and the findings of a step's operations. Executors with real threads
// and simulated ones share it, and differ in what drives the scheduler.
//
// A workspace is made of parts, each with a header of its own: memory of programs, error feedback, buckets that work
// on lists of rows, findings, losses and the control vector. It tells them of strategies and steps, and it gives an
// operation the memory that belongs to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/core/measurement.h"
#include "engine/exec/carried.h"
#include "engine/exec/compute.h"
#include "engine/exec/control_vector.h"
#include "engine/exec/feedback.h"
#include "engine/exec/losses.h"
#include "engine/exec/program.h"
#include "engine/exec/program_memory.h"
#include "engine/exec/row_buckets.h"
#include "engine/exec/step_findings.h"

namespace gradtune::exec {

class Workspace {
 public:
  // `seed` is that of random compressors, `timeout_ms` the limit of copies between steps. `sums`: results are sums over
  // ranks, wherever this and other headers say averages.
  Workspace(const core::Seat& seat, uint64_t seed, Platform platform = {}, int64_t timeout_ms = 300'000,
            bool sums = false);

  // Sets the gradients to work on, in the table's order. Drops all slots. Residuals are kept if only times changed
  // in the table.
  void set_gradients(const core::GradientTable& table, const Arenas& arenas);

  // Strategies in slots, between steps. A strategy is ready when it is compiled and has its memory; an error leaves
  // everything unchanged.
  core::Result<std::unique_ptr<Program>> compile(int32_t slot, const core::Strategy& strategy) const;
  core::Status add(int32_t slot, std::unique_ptr<Program> program, int64_t memory_budget_bytes);
  void drop(int32_t slot);
  // Puts a strategy in force on trial, or for good. The difference is in the residuals that other strategies left
  // (feedback.h).
  void run(int32_t slot);
  void commit(int32_t slot);

  // The program in force; null before the first run.
  const Program* program() const { return program_; }
  const BucketProgram& bucket(int32_t bucket) const { return program_->buckets[static_cast<size_t>(bucket)]; }
  const Op& op(int32_t bucket, int32_t op) const { return this->bucket(bucket).ops[static_cast<size_t>(op)]; }
  const std::vector<Piece>& pieces(int32_t tensor) const {
    return program_->pieces_of_tensor[static_cast<size_t>(tensor)];
  }

  // A step, which allocates nothing: begin, arrived for every piece, every operation, conclude, conclude_late for
  // each bucket that is due at the next forward pass, settle.
  void begin();

  // Called before a step begins, if programs work on a device: copies residuals and state to it.
  core::Status bring();

  // A piece of that tensor is ready. Returns true if its bucket is complete.
  bool arrived(int32_t tensor, const Piece& piece, const Arrived& arrived, compress::Queue& queue);
  // True if pieces of that bucket are scaled as they arrive, in the pass that copies them or while they are in a
  // cache. Its first operation, the scale, then has nothing left to do.
  bool scales_arrivals(int32_t bucket) const;

  // Called from any thread; operations of different buckets may run at once.
  void compute(int32_t bucket, int32_t op, compress::Queue& queue);
  comm::Collective collective(int32_t bucket, int32_t op, int64_t timeout_ms) const;

  // The step's control collective: the word, reduced by maximum, followed by the data that workspaces exchange. It
  // is started after every bucket's first operation. The word belongs to the caller again once control_done() has
  // returned, which writes the reduced word there.
  comm::Collective control(std::span<double> word, int64_t timeout_ms);
  void control_done() { control_.done(); }

  // The rows of a tensor's average (RowBuckets).
  using Listed = RowBuckets::Listed;
  Listed listed(int32_t tensor) const;
  // Writes such an average to its place in the arena. The average of other tensors, or of a gradient that came
  // dense, is there once the step is concluded.
  void lay_out_average(int32_t tensor);

  // The verdict of an operation that is done.
  const compress::Verdict& verdict(int32_t bucket, int32_t op) const { return findings_.verdict(bucket, op); }
  // For a bucket on a device, once the host was told of an operation's end: takes the findings up to there.
  void take_report(int32_t bucket);
  // The loss of that bucket's compression on this rank, in the step that was concluded last. For a bucket that is
  // due at the next forward pass, it is the step that was settled last.
  core::BucketLoss loss(int32_t bucket) const { return losses_.of(bucket); }
  // True if residuals were added to the gradients of that bucket in the step, on this rank.
  bool drained(int32_t bucket) const { return findings_.of(bucket).drained.added; }

  // Called once the control word and all buckets that are due at the end of backward are done; `finite` is true if
  // the control word says that all ranks were finite. Returns true if the step counts. Averages may still be too
  // large for the gradients' type; all ranks find the same, as they have the same bits. If the step does not count,
  // its gradients have the same bits on all ranks:
  // - In buckets that carry non-finite numbers (BucketProgram) they are unchanged: these numbers are where plain
  //   sums have them.
  // - In all others they are NaN, and so they are in all buckets whose residuals were drained on some rank. Such a
  //   gradient contains residuals that are still owed, so all ranks and every scaler have to see that it is void.
  //
  // A payload that cannot be decoded is expected if values were not finite. It is an error if all ranks were finite,
  // and in a bucket that carries non-finite numbers.
  core::Result<bool> conclude(bool finite, compress::Queue& queue);

  // The same for a bucket that is due at the next forward pass, once it is done. If it is not finite although all
  // ranks were, that is an error, because they have agreed on the step. A second call does nothing.
  core::Status conclude_late(int32_t bucket, compress::Queue& queue);

  // If the step counts, its changes of residuals and of codecs' state become permanent; otherwise both stay as
  // before the step.
  void settle();

  // Called between steps, with a strategy in force. `residuals`, `parked`: allocates them if necessary.
  Carried carried(bool residuals = false, bool parked = false);

  Residuals& residuals() { return feedback_.residuals(); }
  const Residuals& residuals() const { return feedback_.residuals(); }
  int64_t memory_bytes(core::Space space = core::Space::host) const {
    return memory_.bytes(space) + residuals().bytes()[space];
  }

 private:
  const Program* find(int32_t slot) const;
  core::Status reserve(const Program& program, int64_t memory_budget_bytes);
  BucketMemory memory_of(int32_t bucket) const;
  std::byte* gradient_of(int32_t bucket) const;
  std::byte* report(int32_t bucket, core::Space space) const;  // findings, followed by verdicts
  void begin_bucket(int32_t bucket, const BucketMemory& memory, compress::Queue& queue, Findings& findings);
  void check_books(int32_t bucket, int32_t op, const BucketMemory& memory, compress::Queue& queue, Findings& findings);
  bool is_balanced(int32_t bucket) const;  // in this step
  void make_void(int32_t bucket, compress::Queue& queue);
  void keep_loss(int32_t bucket);

  const core::Seat seat_;
  const int divisor_;  // of sums over ranks
  const uint64_t seed_;
  const Platform platform_;
  core::GradientTable table_;
  Arenas arenas_{};
  Slots slots_;
  const Program* program_ = nullptr;  // in force
  ProgramMemory memory_;
  Feedback feedback_;
  RowBuckets rows_;
  Losses losses_;
  uint32_t steps_ = 0;  // the number of steps settled as finite, the same on all ranks

  // State of the step.
  std::vector<int32_t> missing_tensors_;  // per bucket
  StepFindings findings_;
  ControlVector control_;
  bool counts_ = false;             // valid once the step was concluded
  std::vector<bool> is_concluded_;  // per bucket that is due at the next forward pass
};

// Tokens that identify the completions of a step's collectives.
constexpr uint64_t kControlToken = ~uint64_t{0};
constexpr uint64_t token_of(int32_t bucket, int32_t op) {
  return static_cast<uint64_t>(static_cast<uint32_t>(bucket)) << 32 | static_cast<uint32_t>(op);
}
constexpr int32_t bucket_of(uint64_t token) { return static_cast<int32_t>(token >> 32); }
constexpr int32_t op_of(uint64_t token) { return static_cast<int32_t>(token & 0xffffffffU); }

// The error of a collective, with its name: "a collective of bucket 3 failed: ...".
core::Error named(uint64_t token, const core::Error& error);

}  // namespace gradtune::exec
