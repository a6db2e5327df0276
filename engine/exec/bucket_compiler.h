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

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/exec/bucket_layout.h"
#include "engine/exec/gradient_at_hand.h"
#include "engine/exec/payload_buffers.h"
#include "engine/exec/placement.h"
#include "engine/exec/program.h"
#include "engine/exec/rank_grid.h"

namespace gradtune::exec {

// A bucket to compile. Everything outlives the compilation.
struct BucketJob {
  const core::Bucket& bucket;
  int number = 0;  // determines the roots
  const core::GradientTable& table;
  const std::vector<Codec>& codecs;  // of the option
  const core::Seat& seat;
  const Platform& platform;
};

class BucketCompiler {
 public:
  // The program's dtype, space and number of elements are set. The bucket's own memory begins at `begins`.
  BucketCompiler(const BucketJob& job, BucketProgram& program, const BucketLayout::Offsets& begins);
  BucketCompiler(const BucketCompiler&) = delete;
  BucketCompiler& operator=(const BucketCompiler&) = delete;

  // Fills in staging, residual and operations of the program. Buffers in memory that buckets share begin at 0 until
  // they are placed.
  core::Status compile();

  const BucketLayout& layout() const { return layout_; }

 private:
  using Part = RankGrid::Part;

  // The rounds of the codec whose payloads come next or are at hand; between rounds the gradient is unchanged.
  struct Rounds {
    const compress::Compressor* codec = nullptr;  // the host's, for properties that are the same in all spaces
    int next = 0;                                 // the one that comes next or is under way
    Encode encode = {};                           // without the parts of a single round
    std::vector<bool> summed = {};                // the dimensions, as determined by the first round
    core::Space space{};                          // of all rounds
    int64_t state_begin = -1, state_bytes = 0;    // of the codec, for one part
  };

  // The payloads that are the current data.
  struct Payloads {
    bool exist = false;
    bool exchanged = false;
    int summed = 1;           // the number of payloads that each of these is the sum of at its decode
    std::vector<Part> parts;  // the one that each of them encodes
    PayloadBuffers memory;
  };

  core::Status check_codecs();
  std::optional<RowLists> find_lists() const;
  core::Status find_grid();
  void begin();
  void stage(core::Place place);
  void end();
  core::Status compile_step(const core::Step& step);
  core::Status encode(const core::Step& step);
  core::Status begin_encoding(const core::Step& step);  // the part common to all rounds
  core::Status cut_into_parts();
  core::Status decode(const core::Step& step);
  core::Status reduce(const core::Step& step);    // all_reduce, reduce_scatter, reduce: adds up
  core::Status exchange(const core::Step& step);  // all_to_all, all_gather, gather of payloads
  core::Status sum_payloads(const core::Step& step, Collective sum);
  void sort_by_receiver(size_t d);
  core::Status all_gather_gradient(const core::Step& step);
  core::Status broadcast(const core::Step& step);

  std::vector<size_t> cuts_ahead() const;
  int sums_ahead() const;
  bool needs_equal_shards() const;
  std::vector<Payload> payloads() const;
  Range longest_part() const;
  std::vector<core::Matrix> matrices_in(const Range& range) const;
  std::optional<size_t> shared_receiver() const;

  void bring_payloads(core::Space space);
  Collective collective(const core::Step& step) const;
  void add(Op op) { program_.ops.push_back(std::move(op)); }
  void add(const core::Step& step, const Collective& what);
  core::Error refuse(const std::string& why) const;
  core::Error refuse_round() const;
  core::Error refuse_place() const;

  const BucketJob job_;
  const core::Option& option_;
  const std::vector<core::Matrix> matrices_;
  BucketProgram& program_;
  BucketLayout layout_;
  const Placement placement_;

  RankGrid grid_;
  int32_t step_ = 0;
  int list_ = 0;           // the list that the next encode reads
  bool is_share_ = false;  // the data is a share of the average: scaled, and with the residual added
  GradientAtHand gradient_;
  uint32_t encodes_ = 0;
  std::vector<bool> has_encoded_;  // per codec
  Rounds rounds_;
  Payloads payloads_;
};

}  // namespace gradtune::exec
