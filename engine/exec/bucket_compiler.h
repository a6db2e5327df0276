// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Compiles one bucket's option for one rank: walks its steps and what they leave of the data. Private to program.cc.
//
// Ranks are seen in up to two dimensions: all of them, or those of a node and the nodes. What a rank holds is described
// for each dimension: summed over it or not, cut into shards or not, at one root only or not. Every rank compiles the
// same program to the same buffers; what differs is which shard is its own and in which operations it takes part.
//
// What is at hand (a gradient, or payloads) lies in one space at a time. Where the next step works in another one, a
// copy comes first.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/exec/program.h"

namespace gradtune::exec {

// Where a bucket's buffers lie that it shares with others, in the pools.
struct SharedMemory {
  std::array<core::PerSpace<int64_t>, 2> scratch{};  // of codecs, by place
  // By position in the program: what the collective there brings, if that is shared, and a copy of it.
  std::vector<core::PerSpace<int64_t>> brought;
};

// A codec as it works in each space; null where programs do not need it. The host's is always there.
using Codec = core::PerSpace<const compress::Compressor*>;

class BucketCompiler {
 public:
  // Offsets in the memory of payloads and staging, and in that of codecs' state.
  struct Offsets {
    core::PerSpace<int64_t> pool = {}, state = {};
  };

  // `codecs`: those of the option. The bucket's own memory begins there; roots are drawn from its number.
  BucketCompiler(const core::Bucket& bucket, int number, const core::GradientTable& table,
                 const std::vector<Codec>& codecs, const core::Seat& seat, const Platform& platform,
                 const Offsets& begins, const SharedMemory& shared);

  // Fills in staging, residual and operations of a program that has dtype, space and numel.
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

  std::optional<RowLists> find_lists() const;
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
  core::Error refuse_place() const;

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
  int64_t allocate(core::Space space, int64_t bytes);
  int64_t bring(core::Space space, int64_t bytes);
  int64_t allocate_state(core::Space space, int64_t bytes);
  core::Error refuse(const std::string& why) const;

  const core::Option& option_;
  const std::vector<Codec>& codecs_;
  const core::Seat& seat_;
  const Platform& platform_;
  const int bucket_;
  const core::Bucket& source_;
  const core::GradientTable& table_;
  const std::vector<core::Matrix> matrices_;
  Offsets next_;
  const SharedMemory& shared_;
  SharedMemory shared_bytes_;
  BucketProgram* program_ = nullptr;
  int32_t step_ = 0;
  int list_ = 0;  // that the next encode reads

  std::array<Dimension, 2> dimensions_;
  int64_t padded_ = 0;     // elements of the bucket, rounded up to a whole number of shards
  bool is_share_ = false;  // of the average: scaled, and the residual is in it
  core::Space at_{};       // where the gradient that is at hand lies
  core::PerSpace<bool> has_dense_{}, has_numbers_{};
  uint32_t encodes_ = 0;
  std::vector<bool> has_encoded_;  // per codec

  // Of a codec's rounds, the one that comes next or is under way; between rounds the gradient is as it was.
  int round_ = 0;
  Op encoding_ = {};                        // encode, without what is of one round
  std::array<bool, 2> summed_by_rounds_{};  // the dimensions, as of the first round
  core::Space rounds_in_{};                 // all of them
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
