// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Compiles one bucket's option for one rank: walks the steps and tracks the state of the data after each. Private to
// program.cc.
//
// Ranks form one or more dimensions: all of them, those of a node and the nodes, or those of a mesh. The data of a
// rank is described for each dimension: summed over it or not, cut into shards or not, at one root only or not.
// Every rank compiles the same program to the same buffers. Ranks differ only in their own shard and in the
// operations that they take part in.
//
// The current data (a gradient, or payloads) lies in one space at a time. If the next step works in another space, a
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

// The instances of a codec in each space; null if programs do not need it. The host's always exists.
using Codec = core::PerSpace<const compress::Compressor*>;

class BucketCompiler {
 public:
  // `codecs` are those of the option. The bucket's own memory begins at `begins`; its number determines the roots.
  BucketCompiler(const core::Bucket& bucket, int number, const core::GradientTable& table,
                 const std::vector<Codec>& codecs, const core::Seat& seat, const Platform& platform,
                 const BucketLayout::Offsets& begins, const SharedMemory& shared);

  // Fills in staging, residual and operations of a program whose dtype, space and numel are set.
  core::Status compile(BucketProgram& program);

  const BucketLayout& layout() const { return layout_; }

 private:
  using Part = RankGrid::Part;

  std::optional<RowLists> find_lists() const;
  core::Status find_grid();
  void begin();
  core::Status compile_step(const core::Step& step);
  core::Status encode(const core::Step& step);
  core::Status begin_encoding(const core::Step& step);  // the part common to all rounds
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

  // The place of a step: if the option places it on a device that has no kernels for it, the host does it.
  core::Place place_of(const core::Step& step) const {
    if (core::is_collective(step.kind)) return own_place();
    const bool has_kernel = codecs_[step.codec][program_->space] != nullptr;
    return has_kernel ? step.place : core::Place::host;
  }
  core::Place own_place() const {  // of operations without a codec
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
  Address dense_in(core::Space space);    // allocated on first use
  Address numbers_in(core::Space space);  // allocated on first use
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
  int list_ = 0;  // the list that the next encode reads

  RankGrid grid_;
  bool is_share_ = false;  // the data is a share of the average: scaled, and with the residual added
  core::Space at_{};       // the space of the current gradient
  core::PerSpace<bool> has_dense_{}, has_numbers_{};
  uint32_t encodes_ = 0;
  std::vector<bool> has_encoded_;  // per codec

  // The codec's round that comes next or is under way; between rounds the gradient is unchanged.
  int round_ = 0;
  Op encoding_ = {};                    // encode, without the parts of a single round
  std::vector<bool> summed_by_rounds_;  // the dimensions, as determined by the first round
  core::Space rounds_in_{};             // the space of all rounds
  int64_t state_begin_ = -1, state_bytes_ = 0;

  // The state while payloads are the current data: they are of equal size, one after the other, in one space. If a
  // collective added up a copy of them, the other space has a buffer for them too.
  bool encoded_ = false, exchanged_ = false;
  int summed_ = 1;  // the number of payloads that each of these is the sum of at its decode
  const compress::Compressor* codec_ = nullptr;  // the host's, for properties that are the same in all spaces
  std::vector<Part> parts_;
  core::Space payloads_in_{};
  core::PerSpace<int64_t> buffer_{};
  core::PerSpace<bool> has_buffer_{};
  int32_t brought_by_ = -1;  // the collective that received the payloads into shared memory; -1: not shared
  int64_t part_bytes_ = 0;
};

}  // namespace gradtune::exec
