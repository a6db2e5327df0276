// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Compiles one bucket's option for one rank: walks its steps and what they leave of the data. Private to program.cc.
//
// Ranks are seen in one or more dimensions: all of them, those of a node and the nodes, or those of a mesh. What a rank
// holds is described for each dimension: summed over it or not, cut into shards or not, at one root only or not. Every
// rank compiles the same program to the same buffers; what differs is which shard is its own and in which operations it
// takes part.
//
// What is at hand (a gradient, or payloads) lies in one space at a time. Where the next step works in another one, a
// copy comes first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/exec/bucket_layout.h"
#include "engine/exec/device.h"
#include "engine/exec/program.h"
#include "engine/exec/rank_grid.h"

namespace gradtune::exec {

// A codec as it works in each space; null where programs do not need it. The host's is always there.
using Codec = core::PerSpace<const compress::Compressor*>;

class BucketCompiler {
 public:
  // `codecs`: those of the option. The bucket's own memory begins at `begins`; roots are drawn from its number.
  BucketCompiler(const core::Bucket& bucket, int number, const core::GradientTable& table,
                 const std::vector<Codec>& codecs, const core::Seat& seat, const Platform& platform,
                 const BucketLayout::Offsets& begins, const SharedMemory& shared);

  // Fills in staging, residual and operations of a program that has dtype, space and numel.
  core::Status compile(BucketProgram& program);

  const BucketLayout& layout() const { return layout_; }

 private:
  using Part = RankGrid::Part;

  std::optional<RowLists> find_lists() const;
  core::Status find_grid();
  void begin();
  core::Status compile_step(const core::Step& step);
  core::Status encode(const core::Step& step);
  core::Status begin_encoding(const core::Step& step);  // what is the same in all rounds
  core::Status decode(const core::Step& step);
  core::Status reduce(const core::Step& step);    // all_reduce, reduce_scatter, reduce: adds up
  core::Status exchange(const core::Step& step);  // all_to_all, all_gather, gather of payloads
  void sort_by_receiver(size_t d);
  core::Status all_gather_gradient(const core::Step& step);
  core::Status broadcast(const core::Step& step);

  std::vector<size_t> cuts_ahead() const;
  int sums_ahead() const;
  bool needs_equal_shards() const;
  std::vector<Payload> payloads() const;
  Range longest_part() const;
  std::vector<core::Matrix> matrices_in(const Range& range) const;
  core::Error refuse_round() const;
  core::Error refuse_place() const;

  // Where a step works: what the option places on a device that has no kernels for it is done by the host.
  core::Place place_of(const core::Step& step) const {
    if (core::is_collective(step.kind)) return own_place();
    const bool has_kernel = codecs_[step.codec][program_->space] != nullptr;
    return has_kernel ? step.place : core::Place::host;
  }
  core::Place own_place() const {  // of what is not a codec's
    const bool has_kernels = program_->space == core::Space::host || platform_.device->kernels() != nullptr;
    return has_kernels ? core::Place::device : core::Place::host;
  }
  core::Space space_of(core::Place place) const {
    return place == core::Place::host ? core::Space::host : program_->space;
  }
  core::Space space_of(core::Level level) const {
    return platform_.collectives_in ? platform_.collectives_in(level) : core::Space::host;
  }
  core::Place place_in(core::Space space) const {
    return space == program_->space ? core::Place::device : core::Place::host;
  }
  Address dense_in(core::Space space);    // allocated by its first use
  Address numbers_in(core::Space space);  // the same
  void bring_dense(core::Space space);
  void bring_payloads(core::Space space);
  void copy(const Address& from, const Address& to, int64_t bytes);

  Op collective(const core::Step& step) const;
  void on_gradient(Op& op, const Range& range);
  int64_t numbers_bytes() const;
  void add(Op op) { program_->ops.push_back(std::move(op)); }
  int64_t allocate(core::Space space, int64_t bytes) { return layout_.allocate(space, bytes); }
  int64_t bring(core::Space space, int64_t bytes);
  core::Error refuse(const std::string& why) const;

  const core::Option& option_;
  const std::vector<Codec>& codecs_;
  const core::Seat& seat_;
  const Platform& platform_;
  const int bucket_;
  const core::Bucket& source_;
  const core::GradientTable& table_;
  const std::vector<core::Matrix> matrices_;
  BucketLayout layout_;
  BucketProgram* program_ = nullptr;
  int32_t step_ = 0;
  int list_ = 0;  // that the next encode reads

  RankGrid grid_;
  bool is_share_ = false;  // of the average: scaled, and the residual is in it
  core::Space at_{};       // where the gradient that is at hand lies
  core::PerSpace<bool> has_dense_{}, has_numbers_{};
  uint32_t encodes_ = 0;
  std::vector<bool> has_encoded_;  // per codec

  // Of a codec's rounds, the one that comes next or is under way; between rounds the gradient is as it was.
  int round_ = 0;
  Op encoding_ = {};                    // encode, without what is of one round
  std::vector<bool> summed_by_rounds_;  // the dimensions, as of the first round
  core::Space rounds_in_{};             // all of them
  int64_t state_begin_ = -1, state_bytes_ = 0;

  // Payloads, while encoded: equally large, one after the other, in one space. Where a collective added up a copy of
  // them there is room in the other one too.
  bool encoded_ = false, exchanged_ = false;
  int summed_ = 1;                               // how many payloads each of these is made of at its decode
  const compress::Compressor* codec_ = nullptr;  // the host's, for what is the same in all spaces
  std::vector<Part> parts_;
  core::Space payloads_in_{};
  core::PerSpace<int64_t> buffer_{};
  core::PerSpace<bool> has_buffer_{};
  int32_t brought_by_ = -1;  // the collective whose payloads share memory with those of others; -1: they do not
  int64_t part_bytes_ = 0;
};

}  // namespace gradtune::exec
