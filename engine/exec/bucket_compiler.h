// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Compiles one bucket's option for one rank: walks its steps and what they leave of the data. Private to program.cc.
//
// Ranks are seen in up to two dimensions: all of them, or those of a node and the nodes. What a rank holds is described
// for each dimension: summed over it or not, cut into shards or not, at one root only or not. Every rank compiles the
// same program to the same buffers; what differs is which shard is its own and in which operations it takes part.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "engine/exec/program.h"

namespace gradtune::exec {

// Where a bucket's buffers lie that it shares with others, in the pool.
struct SharedMemory {
  std::array<int64_t, 2> scratch{};  // of codecs, by place
  std::vector<int64_t> brought;      // by position in the program: what the collective there brings, if that is shared
};

class BucketCompiler {
 public:
  // Offsets in the memory of payloads and staging, and in that of codecs' state.
  struct Offsets {
    int64_t pool = 0, state = 0;
  };

  // `codecs`: those of the option. The bucket's own memory begins there; roots are drawn from its number.
  BucketCompiler(const core::Bucket& bucket, int number, const core::GradientTable& table,
                 const std::vector<const compress::Compressor*>& codecs, const core::Seat& seat, const Offsets& begins,
                 const SharedMemory& shared);

  // Fills in staging, residual and operations of a program that has dtype and numel.
  core::Status compile(BucketProgram& program);

  const Offsets& ends() const { return next_; }

  // Bytes of what is shared, as SharedMemory has it.
  const SharedMemory& shared_bytes() const { return shared_bytes_; }

 private:
  // One dimension of the ranks, and what was done over it.
  struct Dimension {
    int size = 1, index = 0, root = 0;
    bool summed = false;   // a gradient that is the sum over it
    bool pending = false;  // payloads of all its members, to be added up by the next decode
    bool split = false;    // this rank has its own shard only
    bool rooted = false;   // only the root has anything
  };
  static constexpr int kWhole = -1;
  using Part = std::array<int, 2>;  // the shard in each dimension, or kWhole

  core::Status find_dimensions();
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
  Part own_part() const;
  Range range_of(const Part& part) const;         // without what lies behind the bucket's end
  Range padded_range_of(const Part& part) const;  // shards of one dimension are equally long
  bool is_replicated(size_t d) const {
    return dimensions_[d].summed && !dimensions_[d].split && !dimensions_[d].rooted;
  }
  bool is_active(size_t except = 2) const;  // whether this rank has something, as far as other dimensions go
  std::vector<Payload> payloads() const;
  Range longest_part() const;
  std::vector<core::Matrix> matrices_in(const Range& range) const;
  core::Error refuse_round() const;

  Op collective(const core::Step& step) const;
  void on_gradient(Op& op, const Range& range);
  void add(Op op) { program_->ops.push_back(std::move(op)); }
  int64_t allocate(int64_t bytes);
  int64_t bring(int64_t bytes);
  int64_t allocate_state(int64_t bytes);
  core::Error refuse(const std::string& why) const;

  const core::Option& option_;
  const std::vector<const compress::Compressor*>& codecs_;
  const core::Seat& seat_;
  const int bucket_;
  const std::vector<core::Matrix> matrices_;
  Offsets next_;
  const SharedMemory& shared_;
  SharedMemory shared_bytes_;
  BucketProgram* program_ = nullptr;
  int32_t step_ = 0;

  std::array<Dimension, 2> dimensions_;
  int64_t padded_ = 0;     // elements of the bucket, rounded up to a whole number of shards
  bool is_share_ = false;  // of the average: scaled, and the residual is in it
  uint32_t encodes_ = 0;
  std::vector<bool> has_encoded_;  // per codec

  // Of a codec's rounds, the one that comes next or is under way; between rounds the gradient is as it was.
  int round_ = 0;
  Op encoding_ = {};                        // encode, without what is of one round
  std::array<bool, 2> summed_by_rounds_{};  // the dimensions, as of the first round
  int64_t state_begin_ = -1, state_bytes_ = 0;

  // Payloads, while encoded: equally large, one after the other.
  bool encoded_ = false, exchanged_ = false;
  int summed_ = 1;  // how many payloads each of these is made of at its decode
  const compress::Compressor* codec_ = nullptr;
  std::vector<Part> parts_;
  int64_t buffer_ = 0, part_bytes_ = 0;
};

}  // namespace gradtune::exec
