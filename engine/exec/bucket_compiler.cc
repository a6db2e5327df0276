// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// This file is long because it holds the meaning of every kind of step, and all kinds share the tracked state of the
// data.
#include "engine/exec/bucket_compiler.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/core/row_order.h"

namespace gradtune::exec {
namespace {

using core::DType;
using core::Level;
using core::Step;
using Kind = Op::Kind;

bool is_encode(const Step& step) { return step.kind == Step::Kind::encode; }

}  // namespace

BucketCompiler::BucketCompiler(const core::Bucket& bucket, int number, const core::GradientTable& table,
                               const std::vector<Codec>& codecs, const core::Seat& seat, const Platform& platform,
                               const BucketLayout::Offsets& begins, const SharedMemory& shared)
    : option_(bucket.option),
      codecs_(codecs),
      seat_(seat),
      platform_(platform),
      bucket_(number),
      source_(bucket),
      table_(table),
      matrices_(core::matrices_of(bucket, table)),
      layout_(begins, shared, option_.steps.size()),
      grid_(RankGrid::flat(seat, number)),
      has_encoded_(codecs.size()) {}

core::Status BucketCompiler::compile(BucketProgram& program) {
  program_ = &program;
  for (size_t i = 0; i < option_.steps.size(); ++i) {
    const Step& step = option_.steps[i];
    step_ = static_cast<int32_t>(i);
    if (!core::is_collective(step.kind) && step.codec >= codecs_.size()) {
      return refuse("it names codec " + std::to_string(step.codec) + " of " + std::to_string(codecs_.size()));
    }
  }
  step_ = 0;
  list_ = 0;
  if (!core::takes(option_, program.dtype)) {
    return refuse("gradients in double precision are summed as they are; allowed is \"all_reduce\"");
  }
  program.lists = find_lists();
  if (core::Status status = find_grid(); !status) return status;
  begin();
  for (size_t i = 0; i < option_.steps.size(); ++i) {
    step_ = static_cast<int32_t>(i);
    if (core::Status status = compile_step(option_.steps[i]); !status) return status;
  }
  if (round_ > 0) return refuse_round();
  if (encoded_ || !grid_.is_replicated()) {
    return refuse("it does not end in the average of all ranks, decoded, whole and on every rank");
  }
  if (program.lists) program.lists->result = list_;
  if (program.staged == 0) {
    bring_dense(program.space);
    return {};
  }
  const core::Place place = place_of(option_.steps.back());
  const core::Space space = space_of(place);
  bring_dense(space);
  numbers_in(space);
  add({.kind = Kind::store, .place = place, .space = space});
  if (space != program.space) copy(numbers_in(space), numbers_in(program.space), numbers_bytes());
  return {};
}

// The row lists of a bucket that is one fp32 matrix, if its program exchanges only payloads that are made of rows.
// The rows are those of the matrix, and have to be contiguous.
std::optional<RowLists> BucketCompiler::find_lists() const {
  if (program_->space != core::Space::host) return {};
  const core::Slice& slice = source_.slices.front();
  const core::TensorInfo& tensor = table_.tensors[static_cast<size_t>(slice.tensor)];
  if (source_.due == core::Due::forward) return {};  // averages of lists are handed out when backward returns
  if (source_.slices.size() > 1 || slice.length != tensor.numel || tensor.shape.size() < 2) return {};
  if (tensor.dtype != DType::f32 || !tensor.is_row_major()) return {};
  if (tensor.shape[0] < 1 || tensor.shape[0] > core::RowOrder::kMostRows) return {};
  bool encoded = false;
  for (const Step& step : option_.steps) {
    if (core::is_collective(step.kind)) {
      if (!encoded) return {};
      continue;
    }
    if (!codecs_[step.codec][core::Space::host]->traits().takes_rows) return {};
    encoded = is_encode(step);
  }
  return RowLists{.rows = tensor.shape[0], .width = tensor.numel / tensor.shape[0]};
}

core::Status BucketCompiler::find_grid() {
  bool flat = false, levels = false, mesh = false;
  for (const Step& step : option_.steps) {
    if (!core::is_collective(step.kind)) continue;
    (step.level == Level::flat ? flat : core::is_dimension(step.level) ? mesh : levels) = true;
  }
  if (flat + levels + mesh > 1) {
    return refuse("collectives over all ranks, over levels and along dimensions do not mix");
  }
  if (levels && !seat_.has_levels()) {
    return refuse("levels need nodes that are known, and of equally many ranks");
  }
  if (levels) grid_ = RankGrid::levels(seat_, bucket_);
  if (mesh) grid_ = RankGrid::mesh(seat_, bucket_);
  for (const Step& step : option_.steps) {
    if (!core::is_collective(step.kind) || !core::is_dimension(step.level)) continue;
    if (step.kind != Step::Kind::all_gather) return refuse("along dimensions goes all_gather alone");
    if (RankGrid::dimension_of(step.level) < grid_.dimensions()) continue;
    return refuse("the mesh of " + std::to_string(seat_.size) + " ranks has " + std::to_string(grid_.dimensions()) +
                  " dimensions");
  }
  const int64_t padded = program_->lists
                             ? core::round_up(program_->lists->rows, grid_.shards()) * program_->lists->width
                             : core::padded_to_shards(program_->numel, grid_.shards());
  grid_.lay_out(program_->numel, padded);
  return {};
}

// Prepares the data for the first step: adds staging if it cannot work in place. Unless the first step encodes, it
// also adds the scale, with the residual.
void BucketCompiler::begin() {
  const Step& first = option_.steps.front();
  const core::Place place = is_encode(first) ? place_of(first) : own_place();
  const core::Space space = program_->begins_in = space_of(place);
  at_ = program_->space;
  bool feeds_back_first = false, encodes = false;
  for (const Step& step : option_.steps) {
    if (!is_encode(step)) continue;
    const bool feeds_back = codecs_[step.codec][core::Space::host]->traits().error_feedback;
    feeds_back_first = encodes ? feeds_back_first : feeds_back;
    program_->keeps_residual = program_->keeps_residual || feeds_back;
    encodes = true;
  }
  const bool needs_fp32 = program_->dtype != DType::f32 && (encodes || option_.steps.size() > 1);
  if (needs_fp32 || (needs_equal_shards() && grid_.padded() != program_->numel)) {
    program_->staged = grid_.padded();
    if (space != at_) copy(numbers_in(at_), numbers_in(space), numbers_bytes());
    numbers_in(space);
    dense_in(space);
    add({.kind = Kind::load, .place = place, .space = space});
    at_ = space;
  } else {
    dense_in(at_);
    bring_dense(space);
  }
  program_->first_work = static_cast<int32_t>(program_->ops.size());
  if (program_->lists) {
    for (RowLists::Place& list : program_->lists->places) {
      list = {allocate(space, program_->lists->rows * 4), allocate(space, program_->numel * 4)};
    }
    add({.kind = Kind::collect, .place = place, .space = space, .list = list_});
  }
  if (!is_encode(first) || (program_->keeps_residual && !feeds_back_first)) {
    add({.kind = Kind::scale, .place = place, .space = space, .residual = program_->keeps_residual});
    is_share_ = true;
  }
}

core::Status BucketCompiler::compile_step(const Step& step) {
  if (round_ > 0 && !encoded_ && !is_encode(step)) return refuse_round();
  switch (step.kind) {
    case Step::Kind::encode: return encode(step);
    case Step::Kind::decode: return decode(step);
    case Step::Kind::all_reduce:
    case Step::Kind::reduce_scatter:
    case Step::Kind::reduce: return reduce(step);
    case Step::Kind::all_to_all:
    case Step::Kind::gather: return exchange(step);
    case Step::Kind::all_gather: return encoded_ ? exchange(step) : all_gather_gradient(step);
    case Step::Kind::broadcast: return broadcast(step);
  }
  return refuse("unknown kind of step");
}

core::Status BucketCompiler::encode(const Step& step) {
  if (encoded_) return refuse("encode needs a gradient, but has payloads");
  const core::Space space = space_of(place_of(step));
  const bool is_other_codec = round_ > 0 && codecs_[step.codec][core::Space::host] != codec_;
  if (step.round != round_ || is_other_codec) return refuse_round();
  if (round_ > 0 && space != rounds_in_) return refuse_place();
  bring_dense(space);
  if (core::Status status = round_ == 0 ? begin_encoding(step) : core::Status(); !status) return status;
  Op op = encoding_;
  op.place = place_of(step);
  op.space = space;
  op.step = step_;
  op.round = round_;
  if (program_->lists) {
    op.list = list_;
    op.scratch_bytes = 0;
  }
  op.scratch = layout_.scratch(op.place, space, op.scratch_bytes);
  const Range longest = longest_part();
  const std::vector<core::Matrix> matrices = matrices_in(longest);
  part_bytes_ = codec_->payload_bytes({longest.length, matrices}, round_);
  const bool has_next = static_cast<size_t>(step_) + 1 < option_.steps.size();
  const Step next = has_next ? option_.steps[static_cast<size_t>(step_) + 1] : step;
  if (next.kind != Step::Kind::all_reduce) part_bytes_ = core::aligned_payload(part_bytes_);
  payloads_in_ = space;
  has_buffer_ = {};
  has_buffer_[space] = true;
  buffer_[space] = allocate(space, part_bytes_ * static_cast<int64_t>(parts_.size()));
  brought_by_ = -1;
  encoded_ = is_share_ = true;
  exchanged_ = false;
  summed_ = sums_ahead();
  op.payloads = payloads();
  op.summed = summed_;
  // The next residual is in the space where the bucket began; another space adds its error to a copy of it.
  const bool is_away = op.banks && space != program_->begins_in;
  const Range banked = grid_.range_of(grid_.own_part());
  const Address there = {Address::Region::next_residual, banked.begin * 4};
  Address here;
  if (codec_->traits().error_feedback && space != program_->begins_in) {
    op.bank = in_pool(space, allocate(space, program_->numel * 4));
    here = {op.bank.region, op.bank.offset + banked.begin * 4};
  }
  if (!grid_.is_active()) return {};
  if (is_away) copy(there, here, banked.length * 4);
  add(std::move(op));
  if (is_away) copy(here, there, banked.length * 4);
  return {};
}

core::Status BucketCompiler::begin_encoding(const Step& step) {
  if (grid_.is_replicated()) {
    return refuse("encode after the whole bucket was reduced has no use");
  }
  codec_ = codecs_[step.codec][core::Space::host];
  rounds_in_ = space_of(place_of(step));
  const compress::Compressor& codec = *codecs_[step.codec][rounds_in_];
  const bool feeds_back = codec_->traits().error_feedback;
  Op op{.kind = Kind::encode,
        .codec = &codec,
        .residual = feeds_back && !is_share_,
        .share = is_share_,
        .banks = feeds_back};
  // Ranks that hold the same sum encode it alike, and one of them keeps the error.
  int owner = 0, stride = 1;
  for (size_t d = 0; d < grid_.dimensions(); ++d) {
    const int index = grid_[d].is_replicated() ? 0 : grid_[d].index;
    op.banks = op.banks && index == grid_[d].index;
    owner += index * stride;
    stride *= grid_[d].size;
  }
  op.random = {.rank = static_cast<uint32_t>(owner), .use = static_cast<uint32_t>(program_->dtype) * 16 + encodes_++};

  // The parts into which the exchanges ahead divide the data, those of the first exchange outermost.
  parts_ = {grid_.own_part()};
  for (const size_t d : cuts_ahead()) {
    if (grid_[d].summed || grid_[d].split || grid_[d].rooted) {
      return refuse("all_to_all ahead needs what was not reduced over these " + std::string(grid_[d].name) + " yet");
    }
    std::vector<Part> finer;
    for (const Part& part : parts_) {
      for (int i = 0; i < grid_[d].size; ++i) {
        finer.push_back(part);
        finer.back()[d] = i;
      }
    }
    parts_ = std::move(finer);
  }
  const Range longest = longest_part();
  if (!codec_->traits().summable && longest.length > std::numeric_limits<uint32_t>::max()) {
    return refuse("payloads of " + std::string(codec_->traits().name) + " count elements in 32 bits");
  }
  const std::vector<core::Matrix> matrices = matrices_in(longest);
  const core::Extent extent{longest.length, matrices};
  op.scratch_bytes = codec.scratch_bytes(extent);
  op.round_memory = allocate(rounds_in_, codec_->round_bytes(extent));
  // A codec's state belongs to its first encode: a sum that it encodes again is different data.
  state_bytes_ = has_encoded_[step.codec] ? 0 : aligned(codec_->state_bytes(extent));
  state_begin_ =
      state_bytes_ > 0 ? layout_.allocate_state(rounds_in_, state_bytes_ * static_cast<int64_t>(parts_.size())) : -1;
  has_encoded_[step.codec] = true;
  encoding_ = std::move(op);
  return {};
}

core::Status BucketCompiler::decode(const Step& step) {
  if (!encoded_) return refuse("decode needs payloads, but has a gradient");
  if (codecs_[step.codec][core::Space::host] != codec_) {
    return refuse("decode names another codec than the encode before it");
  }
  if (step.round != round_) return refuse_round();
  if (!exchanged_) return refuse("decode before any exchange only loses precision");
  const core::Space space = space_of(place_of(step));
  if (codec_->traits().rounds > 1 && space != rounds_in_) return refuse_place();
  bring_payloads(space);
  dense_in(space);
  Op op{.kind = Kind::decode,
        .place = place_of(step),
        .space = space,
        .step = step_,
        .codec = codecs_[step.codec][space],
        .payloads = payloads(),
        .random = encoding_.random,
        .round = round_,
        .summed = summed_,
        .round_memory = encoding_.round_memory};
  if (program_->lists) op.list = list_ = 1 - list_;
  std::stable_sort(op.payloads.begin(), op.payloads.end(),
                   [](const Payload& a, const Payload& b) { return a.range.begin < b.range.begin; });
  if (grid_.is_active()) add(std::move(op));
  const bool is_last = round_ + 1 == codec_->traits().rounds;
  if (is_last) at_ = space;
  summed_by_rounds_.resize(grid_.dimensions());
  for (size_t d = 0; d < grid_.dimensions(); ++d) {
    RankGrid::Dimension& dimension = grid_[d];
    if (round_ == 0) summed_by_rounds_[d] = dimension.pending;
    if (summed_by_rounds_[d] != dimension.pending) return refuse("all rounds go over the same ranks");
    dimension.summed = dimension.summed || (dimension.pending && is_last);
    dimension.pending = false;
  }
  round_ = is_last ? 0 : round_ + 1;
  encoded_ = false;
  return {};
}

core::Status BucketCompiler::reduce(const Step& step) {
  const size_t d = RankGrid::dimension_of(step.level);
  RankGrid::Dimension& dimension = grid_[d];
  const std::string name(core::to_string(step.kind));
  if (dimension.summed || dimension.pending || dimension.split) {
    return refuse(name + " needs what was not reduced over these " + dimension.name + " yet");
  }
  Op op = collective(step);
  if (encoded_) {
    if (!codec_->traits().summable) return refuse(std::string(codec_->traits().name) + " payloads can not be summed");
    if (step.kind != Step::Kind::all_reduce || parts_.size() != 1) return refuse("only all_reduce adds payloads up");
    const int most = core::most_ranks(codec_->traits(), codec_->spec());
    if (summed_ > most) {
      return refuse("payloads of " + core::to_string(codec_->spec()) + " can be summed over " + std::to_string(most) +
                    " ranks at most");
    }
    const compress::Compressor::Summing summing = codec_->summing(round_);
    op.wire = summing.type;
    op.reduction = summing.reduction;
    op.count = part_bytes_ / comm::bytes_per_element(op.wire);
    bring_payloads(op.space);
    op.input = op.output = in_pool(op.space, buffer_[op.space]);
    exchanged_ = dimension.pending = true;
    if (grid_.is_active()) add(std::move(op));
    return {};
  }
  if (step.kind == Step::Kind::reduce_scatter) {
    if (grid_.is_split_behind(d)) return refuse("reduce_scatter over ranks comes before that over nodes");
    on_gradient(op, grid_.padded_range_of(grid_.own_part()));
    op.count /= dimension.size;
    op.output.offset += dimension.index * op.count * comm::bytes_per_element(op.wire);
    dimension.split = true;
  } else {
    on_gradient(op, grid_.range_of(grid_.own_part()));
  }
  if (grid_.is_active()) add(std::move(op));
  dimension.summed = true;
  dimension.rooted = step.kind == Step::Kind::reduce;
  return {};
}

// Exchanges payloads. An all_gather puts shards side by side if there are any; otherwise it brings payloads that are
// to be added up.
core::Status BucketCompiler::exchange(const Step& step) {
  const size_t d = RankGrid::dimension_of(step.level);
  RankGrid::Dimension& dimension = grid_[d];
  const std::string name(core::to_string(step.kind));
  if (!encoded_) return refuse(name + " needs payloads; encode first");
  if (codec_->traits().rounds > 1 || codec_->traits().needs_matrices) {
    return refuse("only all_reduce takes payloads of " + std::string(codec_->traits().name));
  }
  const bool brings_shards = step.kind == Step::Kind::all_gather && dimension.split;
  if (!brings_shards && (dimension.summed || dimension.pending || dimension.split)) {
    return refuse(name + " needs payloads that were not exchanged over these " + dimension.name + " yet");
  }
  if (brings_shards && grid_.is_split_behind(d)) return refuse("shards of nodes are put side by side first");
  if (step.kind == Step::Kind::all_to_all) sort_by_receiver(d);
  Op op = collective(step);
  bring_payloads(op.space);
  if (codec_->traits().used_bytes != nullptr) {
    op.codec = codec_;
    op.payload_bytes = part_bytes_;
  }
  const auto bytes = part_bytes_ * static_cast<int64_t>(parts_.size());
  const std::vector<Part> own = std::move(parts_);
  parts_.clear();
  op.input = in_pool(op.space, buffer_[op.space]);
  if (step.kind == Step::Kind::all_to_all) {
    op.count = bytes / dimension.size;
    buffer_[op.space] = bring(op.space, bytes);
    for (int r = 0; r < dimension.size; ++r) {
      std::copy_if(own.begin(), own.end(), std::back_inserter(parts_),
                   [&](const Part& part) { return part[d] == dimension.index; });
    }
    dimension.split = dimension.pending = true;
  } else {
    op.count = bytes;
    buffer_[op.space] = bring(op.space, bytes * dimension.size);
    for (int r = 0; r < dimension.size; ++r) {
      for (Part part : own) {
        if (brings_shards) part[d] = r;
        parts_.push_back(part);
      }
    }
    if (brings_shards) {
      dimension.split = false;
    } else {
      dimension.pending = true;
    }
  }
  op.output = in_pool(op.space, buffer_[op.space]);
  has_buffer_ = {};
  has_buffer_[op.space] = true;
  exchanged_ = true;
  if (grid_.is_active()) add(std::move(op));
  dimension.rooted = step.kind == Step::Kind::gather;
  return {};
}

// Payloads for one receiver have to be adjacent; after an exchange over another dimension they are not.
void BucketCompiler::sort_by_receiver(size_t d) {
  std::vector<size_t> order(parts_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return parts_[a][d] < parts_[b][d]; });
  if (std::is_sorted(order.begin(), order.end())) return;
  const core::Space space = payloads_in_;
  Op pack{.kind = Kind::pack, .place = place_in(space), .space = space};
  std::vector<Part> sorted;
  for (const size_t p : order) {
    sorted.push_back(parts_[p]);
    pack.payloads.push_back({buffer_[space] + static_cast<int64_t>(p) * part_bytes_, part_bytes_, {}});
  }
  parts_ = std::move(sorted);
  buffer_[space] = allocate(space, part_bytes_ * static_cast<int64_t>(parts_.size()));
  pack.output = in_pool(space, buffer_[space]);
  if (grid_.is_active()) add(std::move(pack));
}

core::Status BucketCompiler::all_gather_gradient(const Step& step) {
  const size_t d = RankGrid::dimension_of(step.level);
  RankGrid::Dimension& dimension = grid_[d];
  if (!dimension.split) return refuse("all_gather needs shards, or payloads; encode first");
  if (grid_.is_split_behind(d)) return refuse("shards of nodes are put side by side first");
  Op op = collective(step);
  on_gradient(op, grid_.padded_range_of(grid_.own_part()));
  op.output.offset -= dimension.index * op.count * comm::bytes_per_element(op.wire);
  if (grid_.is_active()) add(std::move(op));
  dimension.split = false;
  return {};
}

core::Status BucketCompiler::broadcast(const Step& step) {
  const size_t d = RankGrid::dimension_of(step.level);
  RankGrid::Dimension& dimension = grid_[d];
  if (!dimension.rooted) return refuse("broadcast needs what only one of these " + std::string(grid_[d].name) + " has");
  Op op = collective(step);
  if (encoded_) {
    op.count = part_bytes_ * static_cast<int64_t>(parts_.size());
    bring_payloads(op.space);
    op.input = op.output = in_pool(op.space, buffer_[op.space]);
    exchanged_ = true;
  } else {
    on_gradient(op, grid_.range_of(grid_.own_part()));
  }
  if (grid_.is_active(d)) add(std::move(op));
  dimension.rooted = false;
  return {};
}

// --- the state of the data after the steps so far --------------------------------------------------------------------

// The dimensions of the all_to_alls until the next decode.
std::vector<size_t> BucketCompiler::cuts_ahead() const {
  std::vector<size_t> cuts;
  for (size_t i = static_cast<size_t>(step_) + 1; i < option_.steps.size(); ++i) {
    const Step& step = option_.steps[i];
    if (!core::is_collective(step.kind)) break;
    const size_t d = RankGrid::dimension_of(step.level);
    if (step.kind == Step::Kind::all_to_all && std::find(cuts.begin(), cuts.end(), d) == cuts.end()) cuts.push_back(d);
  }
  return cuts;
}

// The number of payloads that collectives add up to one until the next decode.
int BucketCompiler::sums_ahead() const {
  int summed = 1;
  for (size_t i = static_cast<size_t>(step_) + 1; i < option_.steps.size(); ++i) {
    const Step& step = option_.steps[i];
    if (!core::is_collective(step.kind)) break;
    if (step.kind == Step::Kind::all_reduce) summed *= grid_[RankGrid::dimension_of(step.level)].size;
  }
  return summed;
}

// True if a collective moves shards of the gradient itself.
bool BucketCompiler::needs_equal_shards() const {
  bool encoded = false;
  for (const Step& step : option_.steps) {
    if (is_encode(step)) encoded = true;
    if (step.kind == Step::Kind::decode) encoded = false;
    if (step.kind == Step::Kind::reduce_scatter) return true;
    if (step.kind == Step::Kind::all_gather && !encoded) return true;
  }
  return false;
}

// The current payloads. If their codec keeps state, they have its offsets, unless exchanges brought them from other
// ranks.
std::vector<Payload> BucketCompiler::payloads() const {
  const bool has_state = state_begin_ >= 0 && (!exchanged_ || codec_->traits().rounds > 1);
  std::vector<Payload> all;
  for (const Part& part : parts_) {
    const Range range = grid_.range_of(part);
    const auto number = static_cast<int64_t>(all.size());
    std::vector<core::Matrix> matrices = matrices_in(range);
    const int64_t bytes = codec_->payload_bytes({range.length, matrices}, round_);
    all.push_back({buffer_[payloads_in_] + number * part_bytes_, bytes, range, std::move(matrices),
                   has_state ? state_begin_ + number * state_bytes_ : -1});
  }
  return all;
}

// The part with the largest size, which is the first shard: all parts have this size, since collectives have one
// count. Matrices are cut differently in each shard, but then all ranks that sum the shard cut it alike.
Range BucketCompiler::longest_part() const {
  Part first = parts_.front();
  if (!codec_->traits().needs_matrices) {
    for (int& shard : first) shard = shard == RankGrid::kWhole ? RankGrid::kWhole : 0;
  }
  return grid_.range_of(first);
}

std::vector<core::Matrix> BucketCompiler::matrices_in(const Range& range) const {
  if (!codec_->traits().needs_matrices) return {};
  return core::matrices_within(matrices_, range.begin, range.length);
}

core::Error BucketCompiler::refuse_place() const {
  return refuse("all rounds of " + std::string(codec_->traits().name) + " work in one space");
}

core::Error BucketCompiler::refuse_round() const {
  if (codec_ == nullptr) return refuse("a codec's rounds begin with 0");
  return refuse("round " + std::to_string(round_) + " of " + std::string(codec_->traits().name) +
                " is what comes next");
}

// --- operations ------------------------------------------------------------------------------------------------------

Op BucketCompiler::collective(const Step& step) const {
  return {.kind = Kind::collective,
          .space = space_of(step.level),
          .step = step_,
          .collective = step.kind,
          .level = step.level,
          .among = core::is_dimension(step.level) ? std::optional(core::along(step.level, seat_.size)) : std::nullopt,
          .root = grid_[RankGrid::dimension_of(step.level)].root};
}

// Sets up the operation in place on a range of the gradient, or of its staging.
void BucketCompiler::on_gradient(Op& op, const Range& range) {
  bring_dense(op.space);
  const bool staged = program_->staged > 0;
  op.wire = staged ? comm::WireType::f32 : core::wire_type_of(program_->dtype);
  op.count = range.length;
  op.input = dense_in(op.space);
  op.input.offset += range.begin * comm::bytes_per_element(op.wire);
  op.output = op.input;
}

int64_t BucketCompiler::numbers_bytes() const { return program_->numel * core::bytes_per_element(program_->dtype); }

Address BucketCompiler::numbers_in(core::Space space) {
  Address& numbers = program_->numbers[space];
  if (!has_numbers_[space]) {
    numbers = space == program_->space ? Address{Address::Region::gradient}
                                       : in_pool(space, allocate(space, numbers_bytes()));
  }
  has_numbers_[space] = true;
  return numbers;
}

Address BucketCompiler::dense_in(core::Space space) {
  if (program_->staged == 0) return program_->dense[space] = numbers_in(space);
  if (!has_dense_[space]) program_->dense[space] = in_pool(space, allocate(space, program_->staged * 4));
  has_dense_[space] = true;
  return program_->dense[space];
}

// Copies this rank's part of the current gradient to that space.
void BucketCompiler::bring_dense(core::Space space) {
  Address to = dense_in(space);
  if (at_ == space) return;
  Address from = dense_in(at_);
  at_ = space;
  const bool is_staged = program_->staged > 0;
  const Range range = is_staged ? grid_.padded_range_of(grid_.own_part()) : grid_.range_of(grid_.own_part());
  const int64_t width = is_staged ? 4 : core::bytes_per_element(program_->dtype);
  from.offset += range.begin * width;
  to.offset += range.begin * width;
  if (grid_.is_active()) copy(from, to, range.length * width);
}

void BucketCompiler::bring_payloads(core::Space space) {
  if (payloads_in_ == space) return;
  const int64_t bytes = part_bytes_ * static_cast<int64_t>(parts_.size());
  const Address from = in_pool(payloads_in_, buffer_[payloads_in_]);
  payloads_in_ = space;
  if (!has_buffer_[space] && brought_by_ >= 0) {
    buffer_[space] = layout_.brought(static_cast<size_t>(brought_by_), space, bytes);
  } else if (!has_buffer_[space]) {
    buffer_[space] = allocate(space, bytes);
  }
  has_buffer_[space] = true;
  if (grid_.is_active()) copy(from, in_pool(space, buffer_[space]), bytes);
}

void BucketCompiler::copy(const Address& from, const Address& to, int64_t bytes) {
  add({.kind = Kind::copy, .space = core::Space::cuda, .count = bytes, .input = from, .output = to});
}

// Returns a receive buffer. It is shared if a decode comes next, but not if another collective does.
int64_t BucketCompiler::bring(core::Space space, int64_t bytes) {
  const auto step = static_cast<size_t>(step_);
  brought_by_ = -1;
  if (step + 1 == option_.steps.size() || core::is_collective(option_.steps[step + 1].kind)) {
    return allocate(space, bytes);
  }
  brought_by_ = step_;
  return layout_.brought(step, space, bytes);
}

core::Error BucketCompiler::refuse(const std::string& why) const {
  return {core::Error::Code::invalid,
          "program \"" + core::to_string(option_) + "\", step " + std::to_string(step_) + ": " + why};
}

}  // namespace gradtune::exec
