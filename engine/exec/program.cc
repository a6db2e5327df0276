// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/program.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "engine/core/arenas.h"
#include "engine/exec/bucket_compiler.h"
#include "engine/exec/device.h"
#include "engine/exec/findings.h"
#include "engine/exec/loss_sample.h"

namespace gradtune::exec {
namespace {

using core::PerSpace;
using core::Space;

// The operation of that step; -1 if this rank takes no part in it.
int32_t op_of_step(const BucketProgram& bucket, int32_t step) {
  const auto found = std::find_if(bucket.ops.begin(), bucket.ops.end(),
                                  [step](const Op& op) { return op.is<Collective>() && op.step == step; });
  return found == bucket.ops.end() ? -1 : static_cast<int32_t>(found - bucket.ops.begin());
}

// Sets judged_ops.
core::Status find_judged(BucketProgram& bucket, const core::Option& option) {
  for (size_t i = 0; i < bucket.ops.size(); ++i) {
    const Op& op = bucket.ops[i];
    const auto* const encode = op.as<Encode>();
    if (encode == nullptr && !op.is<Scale>()) continue;
    const bool is_first = bucket.judged_ops == 0;
    if (bucket.due == core::Due::backward || is_first) {
      bucket.judged_ops = static_cast<int32_t>(i) + 1;
    } else if (encode != nullptr && encode->codec->traits().narrow) {
      return core::Error{
          core::Error::Code::invalid,
          "program \"" + core::to_string(option) +
              "\" of a bucket that is due at the next forward pass: " + std::string(encode->codec->traits().name) +
              " encodes again, and may overflow after ranks have agreed that all is finite"};
    }
  }
  return {};
}

// Marks operations on a device whose end the host has to know: those before work of the host, and those at which
// verdicts are read, where `judged_ops` ends.
void find_told(BucketProgram& bucket) {
  const auto is_away = [&](size_t op) { return bucket.ops[op].space != core::Space::host; };
  for (size_t i = 0; i + 1 < bucket.ops.size(); ++i) bucket.ops[i].is_told = is_away(i) && !is_away(i + 1);
  if (bucket.judged_ops == 0) return;
  const auto judged = static_cast<size_t>(bucket.judged_ops) - 1;
  if (!is_away(judged)) return;
  size_t told = judged;
  while (told < bucket.ops.size() && !bucket.ops[told].is_told) ++told;
  if (told == bucket.ops.size()) bucket.ops[told = judged].is_told = true;
  bucket.judged_ops = static_cast<int32_t>(told) + 1;
}

// The operation that decodes the data received by the collective at that position, or the collective itself.
int32_t release_of(const std::vector<Op>& ops, int32_t collective) {
  auto next = static_cast<size_t>(collective) + 1;
  if (next < ops.size() && ops[next].is<Copy>()) ++next;
  return next < ops.size() && ops[next].is<Decode>() ? static_cast<int32_t>(next) : collective;
}

// Moves the data that a collective receives to its place: in the collective, and in the operations that use the data
// until its release.
void move_received(BucketProgram& bucket, int32_t collective, int32_t release, const PerSpace<int64_t>& begins) {
  const auto move = [&](Address& address) { address.offset += begins[space_of(address, bucket)]; };
  move(std::get<Collective>(bucket.ops[static_cast<size_t>(collective)].work).output);
  for (auto i = static_cast<size_t>(collective) + 1; i <= static_cast<size_t>(release); ++i) {
    if (auto* const copy = bucket.ops[i].as<Copy>()) {
      move(copy->from);
      move(copy->to);
    } else if (auto* const decode = bucket.ops[i].as<Decode>()) {
      for (Payload& payload : decode->payloads) payload.offset += begins[bucket.ops[i].space];
    }
  }
}

// Places in the pool for the data that collectives hold: the places of any `most` collectives in a row do not
// overlap.
class HeldMemory {
 public:
  HeldMemory(int most, int64_t begin) : most_(static_cast<size_t>(most)), begin_(begin), end_(begin) {}

  // The place of the next collective in the order.
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
  size_t most_ = 0;
  int64_t begin_ = 0;
  int64_t end_;
  std::deque<Range> recent_;
};

int64_t scratch_of(const Collective& what, const CollectiveScratch& scratch) {
  if (!scratch) return 0;
  return aligned(scratch(what.level, {.kind = what.kind, .type = what.wire, .count = what.count, .among = what.among}));
}

// Compiles the buckets of a strategy, then places the memory that they share.
class StrategyCompiler {
 public:
  StrategyCompiler(const core::Strategy& strategy, const core::GradientTable& table, const core::Seat& seat,
                   const Platform& platform)
      : strategy_(strategy),
        table_(table),
        seat_(seat),
        platform_(platform),
        arenas_(core::lay_arenas(table)),
        arena_end_(arenas_.arenas.size()) {}

  core::Result<std::unique_ptr<Program>> compile();

 private:
  core::Status compile_bucket(size_t b);
  core::Status lay_in_arena(size_t b);
  core::Status add_codecs(size_t b);
  core::Result<Codec> add_codec(const core::CompressorSpec& spec, bool is_away);
  void take_layout(size_t b, const BucketLayout& layout);
  void place_scratch();
  void place_held();
  core::Status finish(size_t b);
  void add_reports();

  const core::Strategy& strategy_;
  const core::GradientTable& table_;
  const core::Seat& seat_;
  const Platform& platform_;
  const core::ArenaLayout arenas_;
  std::vector<int64_t> arena_end_;
  std::vector<std::vector<Codec>> codecs_;                // by bucket
  std::vector<std::vector<PerSpace<int64_t>>> received_;  // by bucket, as SharedMemory::received
  std::array<PerSpace<int64_t>, 2> scratch_bytes_{};      // of codecs, by place
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
};

core::Result<std::unique_ptr<Program>> StrategyCompiler::compile() {
  program_->strategy = strategy_;
  program_->pieces_of_tensor.resize(table_.tensors.size());
  for (size_t b = 0; b < strategy_.buckets.size(); ++b) {
    if (core::Status status = compile_bucket(b); !status) return status.error();
  }
  place_scratch();
  place_held();
  for (size_t b = 0; b < strategy_.buckets.size(); ++b) {
    if (core::Status status = finish(b); !status) return status.error();
  }
  for (const Issue& issue : program_->order) {
    Op& release = program_->buckets[static_cast<size_t>(issue.bucket)].ops[static_cast<size_t>(issue.release)];
    release.frees = release.space != Space::host;
  }
  add_reports();
  for (const int64_t bytes : program_->states_bytes.values) program_->state_bytes += bytes;
  return std::move(program_);
}

core::Status StrategyCompiler::compile_bucket(size_t b) {
  BucketProgram& compiled = program_->buckets.emplace_back();
  if (core::Status status = lay_in_arena(b); !status) return status;
  if (core::Status status = add_codecs(b); !status) return status;
  BucketCompiler compiler({.bucket = strategy_.buckets[b],
                           .number = static_cast<int>(b),
                           .table = table_,
                           .codecs = codecs_[b],
                           .seat = seat_,
                           .platform = platform_},
                          compiled, {.pool = program_->pool_bytes, .state = program_->states_bytes});
  if (core::Status status = compiler.compile(); !status) return status;
  compiled.sampled_op = sampled_op(compiled);
  take_layout(b, compiler.layout());
  return {};
}

core::Status StrategyCompiler::lay_in_arena(size_t b) {
  const core::Bucket& bucket = strategy_.buckets[b];
  for (const core::Slice& slice : bucket.slices) {
    const core::TensorInfo& tensor = table_.tensors[static_cast<size_t>(slice.tensor)];
    if (bucket.due == core::Due::backward || tensor.content.of_one == 1) continue;
    return core::Error{core::Error::Code::invalid, "the bucket of " + tensor.name +
                                                       ", whose gradients are sparse, is due at the next forward pass"};
  }
  BucketProgram& compiled = program_->buckets[b];
  compiled.arena = arenas_.tensors[static_cast<size_t>(bucket.slices.front().tensor)].arena;
  compiled.dtype = arenas_.arenas[static_cast<size_t>(compiled.arena)].dtype;
  compiled.space = arenas_.arenas[static_cast<size_t>(compiled.arena)].space;
  if (compiled.space != Space::host && platform_.device == nullptr) {
    return core::Error{core::Error::Code::invalid,
                       "the gradients of bucket " + std::to_string(b) + " are in memory of " +
                           std::string(core::to_string(compiled.space)) + ", and there is no such device here"};
  }
  compiled.numel = core::numel(bucket);
  compiled.due = bucket.due;
  int64_t& end = arena_end_[static_cast<size_t>(compiled.arena)];
  compiled.arena_begin = end;
  compiled.tensors = static_cast<int32_t>(bucket.slices.size());
  for (const core::Slice& slice : bucket.slices) {
    program_->pieces_of_tensor[static_cast<size_t>(slice.tensor)].push_back(
        {.bucket = static_cast<int32_t>(b), .tensor_begin = slice.offset, .arena_begin = end, .length = slice.length});
    end += slice.length;
  }
  return {};
}

core::Status StrategyCompiler::add_codecs(size_t b) {
  const core::Option& option = strategy_.buckets[b].option;
  BucketProgram& compiled = program_->buckets[b];
  std::vector<Codec>& codecs = codecs_.emplace_back();
  const bool computes_away = compiled.space != Space::host && platform_.device->kernels() != nullptr;
  for (size_t c = 0; c < option.codecs.size(); ++c) {
    const bool works_away =
        computes_away && std::ranges::any_of(option.steps, [&](const core::Step& step) {
          return !core::is_collective(step.kind) && step.codec == c && step.place == core::Place::device;
        });
    const auto codec = add_codec(option.codecs[c], works_away);
    if (!codec) return codec.error();
    codecs.push_back(codec.value());
  }
  if (compiled.dtype == core::DType::f64) return {};
  const auto plain = add_codec({plain_codec(compiled.dtype)}, computes_away);
  if (!plain) return plain.error();
  compiled.plain = plain.value();
  return {};
}

core::Result<Codec> StrategyCompiler::add_codec(const core::CompressorSpec& spec, bool is_away) {
  Codec codec;
  auto host = compress::make_compressor(spec);
  if (!host) return host.error();
  codec[Space::host] = program_->codecs.emplace_back(std::move(host.value())).get();
  if (!is_away) return codec;
  auto away = platform_.device->kernels()->make_compressor(spec);
  if (away) codec[Space::cuda] = program_->device_codecs.emplace_back(std::move(away.value())).get();
  return codec;
}

void StrategyCompiler::take_layout(size_t b, const BucketLayout& layout) {
  const BucketProgram& compiled = program_->buckets[b];
  const int64_t begin = program_->pool_bytes[Space::host];
  program_->pool_bytes = layout.ends().pool;
  program_->states_bytes = layout.ends().state;
  if (compiled.lists) program_->untouched.push_back({begin, program_->pool_bytes[Space::host] - begin});
  received_.push_back(layout.shared().received);
  for (size_t place = 0; place < scratch_bytes_.size(); ++place) {
    for (const Space space : core::kSpaces) {
      int64_t& bytes = scratch_bytes_[place][space];
      bytes = std::max(bytes, layout.shared().scratch[place][space]);
    }
  }
  if (compiled.sampled_op < 0) return;
  const Op& sampled = compiled.ops[static_cast<size_t>(compiled.sampled_op)];
  int64_t& bytes = scratch_bytes_[static_cast<size_t>(sampled.place)][sampled.space];
  bytes = std::max(bytes, sample_bytes(std::get<Encode>(sampled.work)));
}

void StrategyCompiler::place_scratch() {
  std::array<PerSpace<int64_t>, 2> begins{};
  for (size_t place = 0; place < begins.size(); ++place) {
    begins[place] = program_->pool_bytes;
    for (const Space space : core::kSpaces) program_->pool_bytes[space] += scratch_bytes_[place][space];
  }
  const auto begin_of = [&](const Op& op) { return begins[static_cast<size_t>(op.place)][op.space]; };
  for (BucketProgram& bucket : program_->buckets) {
    for (Op& op : bucket.ops) {
      if (auto* const encode = op.as<Encode>()) encode->scratch.offset = begin_of(op);
    }
    if (bucket.sampled_op >= 0) bucket.sample = begin_of(bucket.ops[static_cast<size_t>(bucket.sampled_op)]);
  }
}

// Places the data that collectives receive. Places follow the order of collectives, with which each bucket's program
// agrees. The communicator's scratch memory lies behind the received data.
void StrategyCompiler::place_held() {
  const int most_held = core::most_held(strategy_);
  PerSpace<HeldMemory> held{{HeldMemory(most_held, program_->pool_bytes[Space::host]),
                             HeldMemory(most_held, program_->pool_bytes[Space::cuda])}};
  int64_t touched_end = program_->pool_bytes[Space::host];
  for (const core::Issue& issue : strategy_.order) {
    BucketProgram& bucket = program_->buckets[static_cast<size_t>(issue.bucket)];
    const int32_t number = op_of_step(bucket, issue.step);
    if (number < 0) continue;
    const Space space = bucket.ops[static_cast<size_t>(number)].space;
    auto& collective = std::get<Collective>(bucket.ops[static_cast<size_t>(number)].work);
    const PerSpace<int64_t>& received = received_[static_cast<size_t>(issue.bucket)][static_cast<size_t>(issue.step)];
    PerSpace<int64_t> bytes = received, begins;
    collective.scratch.bytes = scratch_of(collective, platform_.scratch);
    bytes[space] += collective.scratch.bytes;
    for (const Space each : core::kSpaces) begins[each] = held[each].place(bytes[each]);
    collective.scratch.offset = begins[space] + received[space];
    if (!bucket.lists) touched_end = std::max(touched_end, begins[Space::host] + bytes[Space::host]);
    // A rank that takes no part in the later steps keeps nothing.
    const bool is_held = std::ranges::any_of(received.values, [](int64_t some) { return some > 0; });
    const int32_t release = is_held ? release_of(bucket.ops, number) : number;
    if (is_held) move_received(bucket, number, release, begins);
    program_->order.push_back({issue.bucket, number, release});
  }
  for (const Space space : core::kSpaces) program_->pool_bytes[space] = held[space].end();
  program_->untouched.push_back({touched_end, program_->pool_bytes[Space::host] - touched_end});
}

core::Status StrategyCompiler::finish(size_t b) {
  BucketProgram& compiled = program_->buckets[b];
  compiled.carries_nonfinite = !compiled.keeps_residual && std::ranges::all_of(codecs_[b], [](const Codec& codec) {
    return codec[Space::host]->traits().carries_nonfinite;
  });
  program_->keeps_residual = program_->keeps_residual || compiled.keeps_residual;
  compiled.first_op = program_->ops;
  program_->ops += static_cast<int32_t>(compiled.ops.size());
  if (core::Status status = find_judged(compiled, strategy_.buckets[b].option); !status) return status;
  find_told(compiled);
  return {};
}

void StrategyCompiler::add_reports() {
  const bool is_any_away =
      std::ranges::any_of(program_->buckets, [](const BucketProgram& bucket) { return bucket.space != Space::host; });
  if (!is_any_away) return;
  for (const Space space : core::kSpaces) {
    program_->reports[space] = program_->pool_bytes[space];
    program_->pool_bytes[space] += aligned(report_bytes(*program_));
  }
}

}  // namespace

const char* plain_codec(core::DType dtype) {
  core::check(dtype != core::DType::f64, "no compressor has payloads of double precision");
  return dtype == core::DType::f32 ? "none" : dtype == core::DType::bf16 ? "bf16" : "fp16";
}

core::Space space_of(const Address& address, const BucketProgram& bucket) {
  switch (address.region) {
    case Address::Region::host_pool: return core::Space::host;
    case Address::Region::cuda_pool: return core::Space::cuda;
    case Address::Region::gradient: return bucket.space;
    case Address::Region::next_residual: return bucket.begins_in;
  }
  return core::Space::host;
}

core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy, const core::GradientTable& table,
                                               const core::Seat& seat, const Platform& platform) {
  return StrategyCompiler(strategy, table, seat, platform).compile();
}

}  // namespace gradtune::exec
