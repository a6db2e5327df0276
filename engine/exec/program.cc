// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/program.h"

#include <algorithm>
#include <array>

namespace gradtune::exec {
namespace {

using core::DType;
using core::Step;
using Kind = Op::Kind;

constexpr int64_t kAlignment = 64;

comm::WireType wire_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return comm::WireType::f32;
    case DType::bf16: return comm::WireType::bf16;
    case DType::f16: return comm::WireType::f16;
  }
  return comm::WireType::u8;
}

// Compiles one bucket's option, walking its steps and what they leave of the data.
class BucketCompiler {
 public:
  BucketCompiler(const core::Option& option, const std::vector<const compress::Compressor*>& codecs, int rank, int size,
                 int64_t pool_begin)
      : option_(option), codecs_(codecs), rank_(rank), size_(size), pool_(pool_begin) {}

  core::Status compile(BucketProgram& program) {
    program_ = &program;
    for (size_t i = 0; i < option_.steps.size(); ++i) {
      step_ = static_cast<int32_t>(i);
      if (core::Status status = compile_step(option_.steps[i]); !status) return status;
    }
    if (encoded_ || sharded_ || !reduced_)
      return refuse("it does not end in the average of all ranks, decoded and whole");
    if (program.staging >= 0) add({.kind = Kind::store, .place = option_.steps.back().place});
    return {};
  }

  int64_t pool_end() const { return pool_; }

 private:
  core::Status compile_step(const Step& step) {
    if (!core::is_collective(step.kind) && step.codec >= codecs_.size()) {
      return refuse("it names codec " + std::to_string(step.codec) + " of " + std::to_string(codecs_.size()));
    }
    switch (step.kind) {
      case Step::Kind::encode: return encode(step);
      case Step::Kind::decode: return decode(step);
      case Step::Kind::all_reduce: return all_reduce();
      case Step::Kind::all_to_all: return all_to_all();
      case Step::Kind::all_gather: return all_gather();
    }
    return refuse("unknown kind of step");
  }

  core::Status encode(const Step& step) {
    if (encoded_) return refuse("encode needs a gradient, but has payloads");
    if (reduced_ && !sharded_) return refuse("encode after the whole bucket was reduced has no use");
    const compress::Compressor* codec = codecs_[step.codec];
    if (program_->dtype != DType::f32 && program_->staging < 0) {
      program_->staging = allocate(program_->numel * 4);
      add({.kind = Kind::load, .place = step.place});
    }
    Op op{.kind = Kind::encode, .place = step.place, .codec = codec, .reencode = reduced_};
    const bool to_owners = !sharded_ && next_is(Step::Kind::all_to_all);
    if (to_owners) {
      for (int r = 0; r < size_; ++r) op.payloads.push_back({.range = shard(program_->numel, r, size_)});
    } else {
      op.payloads.push_back({.range = sharded_ ? shard(program_->numel, rank_, size_) : Range{0, program_->numel}});
    }
    if (codec->traits().error_feedback) {
      if (reduced_ && !program_->keeps_residual) {
        return refuse("a shard that is encoded again with error feedback needs error feedback in its first encode too");
      }
      program_->keeps_residual = true;
    }
    // All parts of an exchange have the size of the largest, since collectives have one count.
    int64_t longest = 0;
    const int64_t shard_length = shard(program_->numel, 0, size_).length;
    for (Payload& payload : op.payloads) {
      longest = std::max(longest, payload.range.length);
      payload.bytes = codec->payload_bytes(payload.range.length);
    }
    part_bytes_ = codec->payload_bytes(to_owners || sharded_ ? shard_length : program_->numel);
    if (!next_is(Step::Kind::all_reduce)) part_bytes_ = (part_bytes_ + 15) / 16 * 16;  // payloads are aligned
    const auto parts = static_cast<int64_t>(op.payloads.size());
    // What goes into an all_gather is encoded where that gathers: the collective works in place and nothing is copied.
    buffer_ = next_is(Step::Kind::all_gather) ? allocate(part_bytes_ * size_) + rank_ * part_bytes_
                                              : allocate(part_bytes_ * parts);
    for (int64_t p = 0; p < parts; ++p) op.payloads[static_cast<size_t>(p)].offset = buffer_ + p * part_bytes_;
    op.scratch_bytes = codec->scratch_bytes(longest);
    op.scratch = allocate(op.scratch_bytes);
    payloads_ = op.payloads;
    codec_ = codec;
    encoded_ = true;
    add(std::move(op));
    return {};
  }

  core::Status decode(const Step& step) {
    if (!encoded_) return refuse("decode needs payloads, but has a gradient");
    if (codecs_[step.codec] != codec_) return refuse("decode names another codec than the encode before it");
    if (!reduced_ && !gathered_) return refuse("decode before any exchange only loses precision");
    add({.kind = Kind::decode, .place = step.place, .codec = codec_, .payloads = payloads_});
    encoded_ = false;
    if (gathered_ && sharded_ && reduced_) sharded_ = false;  // the shards were put side by side
    reduced_ = true;
    gathered_ = false;
    return {};
  }

  core::Status all_reduce() {
    if (reduced_ || sharded_) return refuse("all_reduce needs a whole bucket that was not reduced yet");
    Op op{.kind = Kind::collective, .collective = comm::Collective::Kind::all_reduce};
    if (encoded_) {
      if (!codec_->traits().summable) return refuse(std::string(codec_->traits().name) + " payloads can not be summed");
      op.wire = wire_of(codec_->sum_type());
      op.count = part_bytes_ / comm::bytes_per_element(op.wire);
      op.input = op.output = buffer_;
    } else {
      add({.kind = Kind::scale});
      op.wire = wire_of(program_->dtype);
      op.count = program_->numel;
      op.on_gradient = true;
    }
    add(std::move(op));
    reduced_ = true;
    return {};
  }

  core::Status all_to_all() {
    if (!encoded_ || sharded_ || reduced_)
      return refuse("all_to_all needs a whole encoded bucket that was not reduced yet");
    exchange(comm::Collective::Kind::all_to_all, allocate(part_bytes_ * size_));
    const Range own = shard(program_->numel, rank_, size_);
    set_received([&](int) { return own; });
    sharded_ = true;
    return {};
  }

  core::Status all_gather() {
    if (!encoded_ || gathered_ || option_.steps[static_cast<size_t>(step_) - 1].kind != Step::Kind::encode) {
      return refuse("all_gather needs a payload of this rank; encode right before it");
    }
    exchange(comm::Collective::Kind::all_gather, buffer_ - rank_ * part_bytes_);
    set_received([&](int r) { return sharded_ ? shard(program_->numel, r, size_) : Range{0, program_->numel}; });
    return {};
  }

  void exchange(comm::Collective::Kind kind, int64_t output) {
    add({.kind = Kind::collective,
         .collective = kind,
         .wire = comm::WireType::u8,
         .count = part_bytes_,
         .input = buffer_,
         .output = output});
    buffer_ = output;
    gathered_ = true;
  }

  template <typename RangeOf>
  void set_received(RangeOf range_of) {
    payloads_.clear();
    for (int r = 0; r < size_; ++r) {
      const Range range = range_of(r);
      payloads_.push_back({buffer_ + r * part_bytes_, codec_->payload_bytes(range.length), range});
    }
  }

  bool next_is(Step::Kind kind) const {
    const auto next = static_cast<size_t>(step_) + 1;
    return next < option_.steps.size() && option_.steps[next].kind == kind;
  }

  void add(Op op) {
    op.step = op.kind == Kind::scale || op.kind == Kind::load || op.kind == Kind::store ? -1 : step_;
    program_->ops.push_back(std::move(op));
  }

  int64_t allocate(int64_t bytes) {
    const int64_t begin = pool_;
    pool_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }

  core::Error refuse(const std::string& why) const {
    return {core::Error::Code::invalid,
            "program \"" + core::to_string(option_) + "\", step " + std::to_string(step_) + ": " + why};
  }

  const core::Option& option_;
  const std::vector<const compress::Compressor*>& codecs_;
  int rank_, size_;
  int64_t pool_;
  BucketProgram* program_ = nullptr;
  int32_t step_ = 0;

  // What the steps so far left of the data.
  bool encoded_ = false;   // payloads, not a gradient
  bool sharded_ = false;   // only this rank's shard
  bool reduced_ = false;   // summed over ranks
  bool gathered_ = false;  // payloads of all ranks are here
  const compress::Compressor* codec_ = nullptr;
  std::vector<Payload> payloads_;
  int64_t buffer_ = 0, part_bytes_ = 0;
};

}  // namespace

Range shard(int64_t n, int rank, int size) {
  const int64_t length = ((n + size - 1) / size + 15) / 16 * 16;
  const int64_t begin = std::min(n, rank * length);
  return {begin, std::min(n, begin + length) - begin};
}

core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy, const core::GradientTable& table,
                                               int rank, int size) {
  auto program = std::make_unique<Program>();
  program->strategy = strategy;
  program->hash = core::hash(strategy);
  program->pieces_of_tensor.resize(table.tensors.size());
  std::array<int64_t, 3> arena_end{};
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = strategy.buckets[b];
    std::vector<const compress::Compressor*> codecs;
    for (const core::CompressorSpec& spec : bucket.option.codecs) {
      auto codec = compress::make_compressor(spec);
      if (!codec) return codec.error();
      codecs.push_back(codec.value().get());
      program->codecs.push_back(std::move(codec.value()));
    }
    BucketProgram& compiled = program->buckets.emplace_back();
    compiled.dtype = table.tensors[static_cast<size_t>(bucket.slices.front().tensor)].dtype;
    compiled.numel = core::numel(bucket);
    int64_t& end = arena_end[static_cast<size_t>(compiled.dtype)];
    compiled.arena_begin = end;
    compiled.tensors = static_cast<int32_t>(bucket.slices.size());
    for (const core::Slice& slice : bucket.slices) {
      program->pieces_of_tensor[static_cast<size_t>(slice.tensor)].push_back({.bucket = static_cast<int32_t>(b),
                                                                              .tensor_begin = slice.offset,
                                                                              .arena_begin = end,
                                                                              .length = slice.length});
      end += slice.length;
    }
    BucketCompiler compiler(bucket.option, codecs, rank, size, program->pool_bytes);
    if (core::Status status = compiler.compile(compiled); !status) return status.error();
    program->pool_bytes = compiler.pool_end();
    program->keeps_residual = program->keeps_residual || compiled.keeps_residual;
  }
  return program;
}

}  // namespace gradtune::exec
