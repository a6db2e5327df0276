// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/program.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "engine/core/arenas.h"
#include "engine/exec/bucket_compiler.h"
#include "engine/exec/loss_sample.h"

namespace gradtune::exec {
namespace {

// The operation of that step, or -1 where this rank takes no part in it.
int32_t op_of_step(const BucketProgram& bucket, int32_t step) {
  const auto found = std::find_if(bucket.ops.begin(), bucket.ops.end(),
                                  [step](const Op& op) { return op.kind == Op::Kind::collective && op.step == step; });
  return found == bucket.ops.end() ? -1 : static_cast<int32_t>(found - bucket.ops.begin());
}

bool may_overflow(const Op& op) { return op.kind == Op::Kind::encode || op.kind == Op::Kind::scale; }

// Sets judged_ops.
core::Status find_judged(BucketProgram& bucket, const core::Option& option) {
  for (size_t i = 0; i < bucket.ops.size(); ++i) {
    const Op& op = bucket.ops[i];
    if (!may_overflow(op)) continue;
    const bool is_first = bucket.judged_ops == 0;
    if (bucket.due == core::Due::backward || is_first) {
      bucket.judged_ops = static_cast<int32_t>(i) + 1;
    } else if (op.codec != nullptr && op.codec->traits().narrow) {
      return core::Error{
          core::Error::Code::invalid,
          "program \"" + core::to_string(option) +
              "\" of a bucket that is due at the next forward pass: " + std::string(op.codec->traits().name) +
              " encodes again, and may overflow after ranks have agreed that all is finite"};
    }
  }
  return {};
}

const char* plain_codec(core::DType dtype) {
  return dtype == core::DType::f32 ? "none" : dtype == core::DType::bf16 ? "bf16" : "fp16";
}

// A bucket while it is compiled: first to learn what it needs, then to where its memory is.
struct Draft {
  const core::Bucket& bucket;
  std::vector<const compress::Compressor*> codecs = {};
  BucketProgram program = {};
  BucketCompiler::Offsets begins = {};
  SharedMemory shared = {};
};

core::Result<BucketCompiler> compile_bucket(Draft& draft, int number, const core::GradientTable& table,
                                            const core::Seat& seat) {
  draft.program.ops.clear();
  draft.program.staging = -1;
  BucketCompiler compiler(draft.bucket, number, table, draft.codecs, seat, draft.begins, draft.shared);
  if (core::Status status = compiler.compile(draft.program); !status) return status.error();
  draft.program.sampled_op = sampled_op(draft.program);
  return compiler;
}

// Places in the pool for what collectives hold: those of any `most` collectives in a row are apart.
class HeldMemory {
 public:
  HeldMemory(int most, int64_t begin) : most_(static_cast<size_t>(most)), begin_(begin), end_(begin) {}

  // Of the next collective in the order.
  int64_t place(int64_t bytes) {
    int64_t at = begin_;
    for (bool moved = true; moved && bytes > 0;) {
      moved = false;
      for (const Range& other : recent_) {
        if (at >= other.begin + other.length || other.begin >= at + bytes) continue;
        at = other.begin + other.length;
        moved = true;
      }
    }
    recent_.push_back({at, bytes});
    if (recent_.size() == most_) recent_.pop_front();
    end_ = std::max(end_, at + bytes);
    return at;
  }
  int64_t end() const { return end_; }

 private:
  const size_t most_;
  const int64_t begin_;
  int64_t end_;
  std::deque<Range> recent_;
};

int64_t scratch_of(const Op& op, const CollectiveScratch& scratch) {
  if (!scratch) return 0;
  return aligned(scratch(op.level, {.kind = op.collective, .type = op.wire, .count = op.count}));
}

}  // namespace

core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy, const core::GradientTable& table,
                                               const core::Seat& seat, const CollectiveScratch& scratch) {
  auto program = std::make_unique<Program>();
  program->strategy = strategy;
  program->pieces_of_tensor.resize(table.tensors.size());
  const core::ArenaLayout layout = core::lay_arenas(table);
  std::vector<int64_t> arena_end(layout.arenas.size());
  const auto add_codec = [&](const core::CompressorSpec& spec) -> core::Result<const compress::Compressor*> {
    auto codec = compress::make_compressor(spec);
    if (!codec) return codec.error();
    return program->codecs.emplace_back(std::move(codec.value())).get();
  };
  std::vector<Draft> drafts;
  std::array<int64_t, 2> scratch_bytes{};
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = strategy.buckets[b];
    Draft& draft = drafts.emplace_back(Draft{.bucket = bucket});
    for (const core::CompressorSpec& spec : bucket.option.codecs) {
      const auto codec = add_codec(spec);
      if (!codec) return codec.error();
      draft.codecs.push_back(codec.value());
    }
    BucketProgram& compiled = draft.program;
    compiled.arena = layout.tensors[static_cast<size_t>(bucket.slices.front().tensor)].arena;
    compiled.dtype = layout.arenas[static_cast<size_t>(compiled.arena)].dtype;
    compiled.plain = add_codec({plain_codec(compiled.dtype)}).value();
    compiled.numel = core::numel(bucket);
    compiled.due = bucket.due;
    int64_t& end = arena_end[static_cast<size_t>(compiled.arena)];
    compiled.arena_begin = end;
    compiled.tensors = static_cast<int32_t>(bucket.slices.size());
    for (const core::Slice& slice : bucket.slices) {
      program->pieces_of_tensor[static_cast<size_t>(slice.tensor)].push_back({.bucket = static_cast<int32_t>(b),
                                                                              .tensor_begin = slice.offset,
                                                                              .arena_begin = end,
                                                                              .length = slice.length});
      end += slice.length;
    }
    draft.begins = {.pool = program->pool_bytes, .state = program->state_bytes};
    draft.shared.brought.resize(bucket.option.steps.size());
    const auto compiler = compile_bucket(draft, static_cast<int>(b), table, seat);
    if (!compiler) return compiler.error();
    program->pool_bytes = compiler.value().ends().pool;
    program->state_bytes = compiler.value().ends().state;
    draft.shared.brought = compiler.value().shared_bytes().brought;
    for (size_t place = 0; place < scratch_bytes.size(); ++place) {
      scratch_bytes[place] = std::max(scratch_bytes[place], compiler.value().shared_bytes().scratch[place]);
    }
    if (compiled.sampled_op >= 0) {
      const Op& sampled = compiled.ops[static_cast<size_t>(compiled.sampled_op)];
      int64_t& bytes = scratch_bytes[static_cast<size_t>(sampled.place)];
      bytes = std::max(bytes, sample_bytes(sampled));
    }
  }
  std::array<int64_t, 2> scratch_begin{};
  for (size_t place = 0; place < scratch_bytes.size(); ++place) {
    scratch_begin[place] = program->pool_bytes;
    program->pool_bytes += scratch_bytes[place];
  }
  // In the order of collectives, which each bucket's program has its own in. What the communicator needs lies behind
  // what it brings.
  HeldMemory held(core::most_held(strategy), program->pool_bytes);
  for (const core::Issue& issue : strategy.order) {
    Draft& draft = drafts[static_cast<size_t>(issue.bucket)];
    const int32_t number = op_of_step(draft.program, issue.step);
    if (number < 0) continue;
    const auto position = static_cast<size_t>(number);
    int64_t& brought = draft.shared.brought[static_cast<size_t>(issue.step)];
    const bool is_held = brought > 0;
    brought = held.place(brought + scratch_of(draft.program.ops[position], scratch));
    // A rank that takes no part in what follows keeps nothing.
    const std::vector<Op>& ops = draft.program.ops;
    const bool is_decoded = is_held && position + 1 < ops.size() && ops[position + 1].kind != Op::Kind::collective;
    program->order.push_back({issue.bucket, number, is_decoded ? number + 1 : number});
  }
  program->pool_bytes = held.end();
  for (size_t b = 0; b < drafts.size(); ++b) {
    Draft& draft = drafts[b];
    const std::vector<int64_t> begins = draft.shared.brought;
    draft.shared.scratch = scratch_begin;
    const auto compiler = compile_bucket(draft, static_cast<int>(b), table, seat);
    core::check(compiler.ok(), "what compiles once compiles twice");
    BucketProgram& compiled = program->buckets.emplace_back(std::move(draft.program));
    for (Op& op : compiled.ops) {
      if (op.kind != Op::Kind::collective) continue;
      op.comm_scratch_bytes = scratch_of(op, scratch);
      op.comm_scratch =
          begins[static_cast<size_t>(op.step)] + compiler.value().shared_bytes().brought[static_cast<size_t>(op.step)];
    }
    compiled.carries_nonfinite =
        !compiled.keeps_residual && std::ranges::all_of(draft.codecs, [](const compress::Compressor* codec) {
          return codec->traits().carries_nonfinite;
        });
    if (compiled.sampled_op >= 0) {
      compiled.sample =
          scratch_begin[static_cast<size_t>(compiled.ops[static_cast<size_t>(compiled.sampled_op)].place)];
    }
    program->keeps_residual = program->keeps_residual || compiled.keeps_residual;
    compiled.first_op = program->ops;
    program->ops += static_cast<int32_t>(compiled.ops.size());
    if (core::Status status = find_judged(compiled, draft.bucket.option); !status) return status.error();
  }
  return program;
}

}  // namespace gradtune::exec
