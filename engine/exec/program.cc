// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/program.h"

#include <algorithm>
#include <array>

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

}  // namespace

core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy, const core::GradientTable& table,
                                               const core::Seat& seat) {
  auto program = std::make_unique<Program>();
  program->strategy = strategy;
  program->pieces_of_tensor.resize(table.tensors.size());
  std::array<int64_t, 3> arena_end{};
  const auto add_codec = [&](const core::CompressorSpec& spec) -> core::Result<const compress::Compressor*> {
    auto codec = compress::make_compressor(spec);
    if (!codec) return codec.error();
    return program->codecs.emplace_back(std::move(codec.value())).get();
  };
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = strategy.buckets[b];
    std::vector<const compress::Compressor*> codecs;
    for (const core::CompressorSpec& spec : bucket.option.codecs) {
      const auto codec = add_codec(spec);
      if (!codec) return codec.error();
      codecs.push_back(codec.value());
    }
    BucketProgram& compiled = program->buckets.emplace_back();
    compiled.dtype = table.tensors[static_cast<size_t>(bucket.slices.front().tensor)].dtype;
    compiled.plain = add_codec({plain_codec(compiled.dtype)}).value();
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
    BucketCompiler compiler(bucket, static_cast<int>(b), table, codecs, seat,
                            {.pool = program->pool_bytes, .state = program->state_bytes});
    if (core::Status status = compiler.compile(compiled); !status) return status.error();
    program->pool_bytes = compiler.ends().pool;
    compiled.carries_nonfinite =
        !compiled.keeps_residual &&
        std::all_of(codecs.begin(), codecs.end(), [](const auto* codec) { return codec->traits().carries_nonfinite; });
    compiled.sampled_op = sampled_op(compiled);
    if (compiled.sampled_op >= 0) {
      compiled.sample = program->pool_bytes;
      program->pool_bytes += sample_bytes(compiled.ops[static_cast<size_t>(compiled.sampled_op)]);
    }
    program->state_bytes = compiler.ends().state;
    program->keeps_residual = program->keeps_residual || compiled.keeps_residual;
    compiled.first_op = program->ops;
    program->ops += static_cast<int32_t>(compiled.ops.size());
    compiled.due = bucket.due;
    if (core::Status status = find_judged(compiled, bucket.option); !status) return status.error();
  }
  for (const core::Issue& issue : strategy.order) {
    const int32_t op = op_of_step(program->buckets[static_cast<size_t>(issue.bucket)], issue.step);
    if (op >= 0) program->order.push_back({issue.bucket, op});
  }
  return program;
}

}  // namespace gradtune::exec
