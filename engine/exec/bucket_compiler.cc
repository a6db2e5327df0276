// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
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

bool is_encode(const Step& step) { return step.kind == Step::Kind::encode; }

}  // namespace

BucketCompiler::BucketCompiler(const BucketJob& job, BucketProgram& program, const BucketLayout::Offsets& begins)
    : job_(job),
      option_(job.bucket.option),
      matrices_(core::matrices_of(job.bucket, job.table)),
      program_(program),
      layout_(begins, option_.steps.size()),
      placement_(job.codecs, job.platform, program.space),
      grid_(RankGrid::flat(job.seat, job.number)),
      gradient_(program, layout_),
      has_encoded_(job.codecs.size()),
      payloads_{.parts = {}, .memory = PayloadBuffers(layout_)} {}

core::Status BucketCompiler::compile() {
  if (core::Status status = check_codecs(); !status) return status;
  program_.lists = find_lists();
  if (core::Status status = find_grid(); !status) return status;
  begin();
  for (size_t i = 0; i < option_.steps.size(); ++i) {
    step_ = static_cast<int32_t>(i);
    if (core::Status status = compile_step(option_.steps[i]); !status) return status;
  }
  if (rounds_.next > 0) return refuse_round();
  if (payloads_.exist || !grid_.is_replicated()) {
    return refuse("it does not end in the average of all ranks, decoded, whole and on every rank");
  }
  end();
  return {};
}

core::Status BucketCompiler::check_codecs() {
  for (size_t i = 0; i < option_.steps.size(); ++i) {
    const Step& step = option_.steps[i];
    step_ = static_cast<int32_t>(i);
    if (!core::is_collective(step.kind) && step.codec >= job_.codecs.size()) {
      return refuse("it names codec " + std::to_string(step.codec) + " of " + std::to_string(job_.codecs.size()));
    }
  }
  step_ = 0;
  if (core::takes(option_, program_.dtype)) return {};
  return refuse("gradients in double precision are summed as they are; allowed is \"all_reduce\"");
}

// Brings the average to the gradient's place.
void BucketCompiler::end() {
  if (program_.lists) program_.lists->result = list_;
  if (program_.staged == 0) return gradient_.bring(program_.space, grid_);
  const core::Place place = placement_.place_of(option_.steps.back());
  const core::Space space = placement_.space_of(place);
  gradient_.bring(space, grid_);
  gradient_.numbers_in(space);
  add({.place = place, .space = space, .work = Store{}});
  if (space != program_.space) gradient_.copy_numbers(space, program_.space);
}

// The row lists of a bucket that is one fp32 matrix, if its program exchanges only payloads that are made of rows.
// The rows are those of the matrix, and have to be contiguous.
std::optional<RowLists> BucketCompiler::find_lists() const {
  if (program_.space != core::Space::host) return {};
  const core::Slice& slice = job_.bucket.slices.front();
  const core::TensorInfo& tensor = job_.table.tensors[static_cast<size_t>(slice.tensor)];
  if (job_.bucket.due == core::Due::forward) return {};  // averages of lists are handed out when backward returns
  if (job_.bucket.slices.size() > 1 || slice.length != tensor.numel || tensor.shape.size() < 2) return {};
  if (tensor.dtype != DType::f32 || !tensor.is_row_major()) return {};
  if (tensor.shape[0] < 1 || tensor.shape[0] > core::RowOrder::kMostRows) return {};
  bool encoded = false;
  for (const Step& step : option_.steps) {
    if (core::is_collective(step.kind)) {
      if (!encoded) return {};
      continue;
    }
    if (!job_.codecs[step.codec][core::Space::host]->traits().takes_rows) return {};
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
  if (levels && !job_.seat.has_levels()) {
    return refuse("levels need nodes that are known, and of equally many ranks");
  }
  if (levels) grid_ = RankGrid::levels(job_.seat, job_.number);
  if (mesh) grid_ = RankGrid::mesh(job_.seat, job_.number);
  for (const Step& step : option_.steps) {
    if (!core::is_collective(step.kind) || !core::is_dimension(step.level)) continue;
    if (step.kind != Step::Kind::all_gather) return refuse("along dimensions goes all_gather alone");
    if (RankGrid::dimension_of(step.level) < grid_.dimensions()) continue;
    return refuse("the mesh of " + std::to_string(job_.seat.size) + " ranks has " + std::to_string(grid_.dimensions()) +
                  " dimensions");
  }
  const int64_t padded = program_.lists ? core::round_up(program_.lists->rows, grid_.shards()) * program_.lists->width
                                        : core::padded_to_shards(program_.numel, grid_.shards());
  grid_.lay_out(program_.numel, padded);
  return {};
}

// Prepares the data for the first step. Unless the first step encodes, this adds the scale, with the residual.
void BucketCompiler::begin() {
  const Step& first = option_.steps.front();
  const core::Place place = is_encode(first) ? placement_.place_of(first) : placement_.own_place();
  const core::Space space = program_.begins_in = placement_.space_of(place);
  bool feeds_back_first = false, encodes = false;
  for (const Step& step : option_.steps) {
    if (!is_encode(step)) continue;
    const bool feeds_back = job_.codecs[step.codec][core::Space::host]->traits().error_feedback;
    feeds_back_first = encodes ? feeds_back_first : feeds_back;
    program_.keeps_residual = program_.keeps_residual || feeds_back;
    encodes = true;
  }
  const bool needs_fp32 = program_.dtype != DType::f32 && (encodes || option_.steps.size() > 1);
  if (needs_fp32 || (needs_equal_shards() && grid_.padded() != program_.numel)) {
    stage(place);
  } else {
    gradient_.dense_in(gradient_.space());
    gradient_.bring(space, grid_);
  }
  program_.first_work = static_cast<int32_t>(program_.ops.size());
  if (program_.lists) {
    for (RowLists::Place& list : program_.lists->places) {
      list = {layout_.allocate(space, program_.lists->rows * 4), layout_.allocate(space, program_.numel * 4)};
    }
    add({.place = place, .space = space, .work = Collect{.list = list_}});
  }
  if (!is_encode(first) || (program_.keeps_residual && !feeds_back_first)) {
    add({.place = place, .space = space, .work = Scale{.residual = program_.keeps_residual}});
    is_share_ = true;
  }
}

// Loads the gradient into staging, because steps cannot work in its place.
void BucketCompiler::stage(core::Place place) {
  const core::Space space = placement_.space_of(place);
  program_.staged = grid_.padded();
  if (space != gradient_.space()) gradient_.copy_numbers(gradient_.space(), space);
  gradient_.numbers_in(space);
  gradient_.dense_in(space);
  add({.place = place, .space = space, .work = Load{}});
  gradient_.appears_in(space);
}

core::Status BucketCompiler::compile_step(const Step& step) {
  if (rounds_.next > 0 && !payloads_.exist && !is_encode(step)) return refuse_round();
  switch (step.kind) {
    case Step::Kind::encode: return encode(step);
    case Step::Kind::decode: return decode(step);
    case Step::Kind::all_reduce:
    case Step::Kind::reduce_scatter:
    case Step::Kind::reduce: return reduce(step);
    case Step::Kind::all_to_all:
    case Step::Kind::gather: return exchange(step);
    case Step::Kind::all_gather: return payloads_.exist ? exchange(step) : all_gather_gradient(step);
    case Step::Kind::broadcast: return broadcast(step);
  }
  return refuse("unknown kind of step");
}

core::Status BucketCompiler::encode(const Step& step) {
  if (payloads_.exist) return refuse("encode needs a gradient, but has payloads");
  const core::Place place = placement_.place_of(step);
  const core::Space space = placement_.space_of(place);
  const bool is_other_codec = rounds_.next > 0 && job_.codecs[step.codec][core::Space::host] != rounds_.codec;
  if (step.round != rounds_.next || is_other_codec) return refuse_round();
  if (rounds_.next > 0 && space != rounds_.space) return refuse_place();
  gradient_.bring(space, grid_);
  if (core::Status status = rounds_.next == 0 ? begin_encoding(step) : core::Status(); !status) return status;
  Encode encode = rounds_.encode;
  encode.round = rounds_.next;
  if (program_.lists) {
    encode.list = list_;
    encode.scratch.bytes = 0;
  }
  layout_.share_scratch(place, space, encode.scratch.bytes);
  const Range longest = longest_part();
  const std::vector<core::Matrix> matrices = matrices_in(longest);
  int64_t part_bytes = rounds_.codec->payload_bytes({longest.length, matrices}, rounds_.next);
  const bool has_next = static_cast<size_t>(step_) + 1 < option_.steps.size();
  const Step next = has_next ? option_.steps[static_cast<size_t>(step_) + 1] : step;
  if (next.kind != Step::Kind::all_reduce) part_bytes = core::aligned_payload(part_bytes);
  payloads_.memory.make(space, part_bytes, payloads_.parts.size());
  payloads_.exist = is_share_ = true;
  payloads_.exchanged = false;
  payloads_.summed = sums_ahead();
  encode.payloads = payloads();
  encode.summed = payloads_.summed;
  // The next residual is in the space where the bucket began; another space adds its error to a copy of it.
  const bool is_away = encode.bank && space != program_.begins_in;
  const Range banked = grid_.range_of(grid_.own_part());
  const Address there = {Address::Region::next_residual, banked.begin * 4};
  Address here;
  if (rounds_.codec->traits().error_feedback && space != program_.begins_in) {
    here = in_pool(space, layout_.allocate(space, program_.numel * 4));
    if (is_away) encode.bank = here;
    here.offset += banked.begin * 4;
  }
  if (!grid_.is_active()) return {};
  if (is_away) add_copy(program_, there, here, banked.length * 4);
  add({.place = place, .space = space, .step = step_, .work = std::move(encode)});
  if (is_away) add_copy(program_, here, there, banked.length * 4);
  return {};
}

core::Status BucketCompiler::begin_encoding(const Step& step) {
  if (grid_.is_replicated()) {
    return refuse("encode after the whole bucket was reduced has no use");
  }
  rounds_.codec = job_.codecs[step.codec][core::Space::host];
  rounds_.space = placement_.space_of(placement_.place_of(step));
  const compress::Compressor& codec = *job_.codecs[step.codec][rounds_.space];
  const bool feeds_back = rounds_.codec->traits().error_feedback;
  Encode encode{{.codec = &codec}};
  encode.residual = feeds_back && !is_share_;
  encode.share = is_share_;
  // Ranks that hold the same sum encode it alike, and one of them keeps the error.
  bool banks = feeds_back;
  int owner = 0, stride = 1;
  for (size_t d = 0; d < grid_.dimensions(); ++d) {
    const int index = grid_[d].is_replicated() ? 0 : grid_[d].index;
    banks = banks && index == grid_[d].index;
    owner += index * stride;
    stride *= grid_[d].size;
  }
  if (banks) encode.bank = Address{Address::Region::next_residual};
  encode.random = {.rank = static_cast<uint32_t>(owner),
                   .use = static_cast<uint32_t>(program_.dtype) * 16 + encodes_++};

  if (core::Status status = cut_into_parts(); !status) return status;
  const Range longest = longest_part();
  if (!rounds_.codec->traits().summable && longest.length > std::numeric_limits<uint32_t>::max()) {
    return refuse("payloads of " + std::string(rounds_.codec->traits().name) + " count elements in 32 bits");
  }
  const std::vector<core::Matrix> matrices = matrices_in(longest);
  const core::Extent extent{longest.length, matrices};
  encode.scratch.bytes = codec.scratch_bytes(extent);
  encode.round_memory = layout_.allocate(rounds_.space, rounds_.codec->round_bytes(extent));
  // A codec's state belongs to its first encode: a sum that it encodes again is different data.
  rounds_.state_bytes = has_encoded_[step.codec] ? 0 : aligned(rounds_.codec->state_bytes(extent));
  rounds_.state_begin =
      rounds_.state_bytes > 0
          ? layout_.allocate_state(rounds_.space, rounds_.state_bytes * static_cast<int64_t>(payloads_.parts.size()))
          : -1;
  has_encoded_[step.codec] = true;
  rounds_.encode = std::move(encode);
  return {};
}

// Finds the parts into which the exchanges ahead divide the data. The first exchange's are the outermost ones.
core::Status BucketCompiler::cut_into_parts() {
  payloads_.parts = {grid_.own_part()};
  for (const size_t d : cuts_ahead()) {
    if (grid_[d].summed || grid_[d].split || grid_[d].rooted) {
      return refuse("all_to_all ahead needs what was not reduced over these " + std::string(grid_[d].name) + " yet");
    }
    std::vector<Part> finer;
    for (const Part& part : payloads_.parts) {
      for (int i = 0; i < grid_[d].size; ++i) {
        finer.push_back(part);
        finer.back()[d] = i;
      }
    }
    payloads_.parts = std::move(finer);
  }
  return {};
}

core::Status BucketCompiler::decode(const Step& step) {
  if (!payloads_.exist) return refuse("decode needs payloads, but has a gradient");
  if (job_.codecs[step.codec][core::Space::host] != rounds_.codec) {
    return refuse("decode names another codec than the encode before it");
  }
  if (step.round != rounds_.next) return refuse_round();
  if (!payloads_.exchanged) return refuse("decode before any exchange only loses precision");
  const core::Place place = placement_.place_of(step);
  const core::Space space = placement_.space_of(place);
  if (rounds_.codec->traits().rounds > 1 && space != rounds_.space) return refuse_place();
  bring_payloads(space);
  gradient_.dense_in(space);
  Decode decode{{.codec = job_.codecs[step.codec][space],
                 .payloads = payloads(),
                 .random = rounds_.encode.random,
                 .round = rounds_.next,
                 .summed = payloads_.summed,
                 .round_memory = rounds_.encode.round_memory}};
  if (program_.lists) decode.list = list_ = 1 - list_;
  std::stable_sort(decode.payloads.begin(), decode.payloads.end(),
                   [](const Payload& a, const Payload& b) { return a.range.begin < b.range.begin; });
  if (grid_.is_active()) add({.place = place, .space = space, .step = step_, .work = std::move(decode)});
  const bool is_last = rounds_.next + 1 == rounds_.codec->traits().rounds;
  if (is_last) gradient_.appears_in(space);
  rounds_.summed.resize(grid_.dimensions());
  for (size_t d = 0; d < grid_.dimensions(); ++d) {
    RankGrid::Dimension& dimension = grid_[d];
    if (rounds_.next == 0) rounds_.summed[d] = dimension.pending;
    if (rounds_.summed[d] != dimension.pending) return refuse("all rounds go over the same ranks");
    dimension.summed = dimension.summed || (dimension.pending && is_last);
    dimension.pending = false;
  }
  rounds_.next = is_last ? 0 : rounds_.next + 1;
  payloads_.exist = false;
  return {};
}

core::Status BucketCompiler::reduce(const Step& step) {
  const size_t d = RankGrid::dimension_of(step.level);
  RankGrid::Dimension& dimension = grid_[d];
  const std::string name(core::to_string(step.kind));
  if (dimension.summed || dimension.pending || dimension.split) {
    return refuse(name + " needs what was not reduced over these " + dimension.name + " yet");
  }
  Collective sum = collective(step);
  if (payloads_.exist) return sum_payloads(step, sum);
  const core::Space space = placement_.space_of(step.level);
  if (step.kind == Step::Kind::reduce_scatter) {
    if (grid_.is_split_behind(d)) return refuse("reduce_scatter over ranks comes before that over nodes");
    gradient_.work_on(sum, space, grid_.padded_range_of(grid_.own_part()), grid_);
    sum.count /= dimension.size;
    sum.output.offset += dimension.index * sum.count * comm::bytes_per_element(sum.wire);
    dimension.split = true;
  } else {
    gradient_.work_on(sum, space, grid_.range_of(grid_.own_part()), grid_);
  }
  if (grid_.is_active()) add(step, sum);
  dimension.summed = true;
  dimension.rooted = step.kind == Step::Kind::reduce;
  return {};
}

core::Status BucketCompiler::sum_payloads(const Step& step, Collective sum) {
  const compress::Compressor& codec = *rounds_.codec;
  if (!codec.traits().summable) return refuse(std::string(codec.traits().name) + " payloads can not be summed");
  if (step.kind != Step::Kind::all_reduce || payloads_.parts.size() != 1) {
    return refuse("only all_reduce adds payloads up");
  }
  const int most = core::most_ranks(codec.traits(), codec.spec());
  if (payloads_.summed > most) {
    return refuse("payloads of " + core::to_string(codec.spec()) + " can be summed over " + std::to_string(most) +
                  " ranks at most");
  }
  const compress::Compressor::Summing summing = codec.summing(rounds_.next);
  sum.wire = summing.type;
  sum.reduction = summing.reduction;
  sum.count = payloads_.memory.part_bytes() / comm::bytes_per_element(sum.wire);
  bring_payloads(placement_.space_of(step.level));
  sum.input = sum.output = payloads_.memory.address();
  payloads_.exchanged = grid_[RankGrid::dimension_of(step.level)].pending = true;
  if (grid_.is_active()) add(step, sum);
  return {};
}

// Exchanges payloads. An all_gather puts shards side by side if there are any; otherwise it brings payloads that are
// to be added up.
core::Status BucketCompiler::exchange(const Step& step) {
  const size_t d = RankGrid::dimension_of(step.level);
  RankGrid::Dimension& dimension = grid_[d];
  const std::string name(core::to_string(step.kind));
  if (!payloads_.exist) return refuse(name + " needs payloads; encode first");
  if (rounds_.codec->traits().rounds > 1 || rounds_.codec->traits().needs_matrices) {
    return refuse("only all_reduce takes payloads of " + std::string(rounds_.codec->traits().name));
  }
  const bool brings_shards = step.kind == Step::Kind::all_gather && dimension.split;
  if (!brings_shards && (dimension.summed || dimension.pending || dimension.split)) {
    return refuse(name + " needs payloads that were not exchanged over these " + dimension.name + " yet");
  }
  if (brings_shards && grid_.is_split_behind(d)) return refuse("shards of nodes are put side by side first");
  if (step.kind == Step::Kind::all_to_all) sort_by_receiver(d);
  Collective exchange = collective(step);
  bring_payloads(placement_.space_of(step.level));
  if (rounds_.codec->traits().used_bytes != nullptr) {
    exchange.codec = rounds_.codec;
    exchange.payload_bytes = payloads_.memory.part_bytes();
  }
  exchange.input = payloads_.memory.address();
  exchange.count = payloads_.memory.bytes();
  const std::vector<Part> own = std::move(payloads_.parts);
  payloads_.parts.clear();
  if (step.kind == Step::Kind::all_to_all) {
    exchange.count /= dimension.size;
    for (int r = 0; r < dimension.size; ++r) {
      std::copy_if(own.begin(), own.end(), std::back_inserter(payloads_.parts),
                   [&](const Part& part) { return part[d] == dimension.index; });
    }
    dimension.split = dimension.pending = true;
  } else {
    for (int r = 0; r < dimension.size; ++r) {
      for (Part part : own) {
        if (brings_shards) part[d] = r;
        payloads_.parts.push_back(part);
      }
    }
    dimension.pending = dimension.pending || !brings_shards;
    dimension.split = dimension.split && !brings_shards;
  }
  payloads_.memory.receive(payloads_.parts.size(), shared_receiver());
  exchange.output = payloads_.memory.address();
  payloads_.exchanged = true;
  if (grid_.is_active()) add(step, exchange);
  dimension.rooted = step.kind == Step::Kind::gather;
  return {};
}

// Payloads for one receiver have to be adjacent; after an exchange over another dimension they are not.
void BucketCompiler::sort_by_receiver(size_t d) {
  std::vector<size_t> order(payloads_.parts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return payloads_.parts[a][d] < payloads_.parts[b][d]; });
  if (std::is_sorted(order.begin(), order.end())) return;
  PayloadBuffers& memory = payloads_.memory;
  const core::Space space = memory.space();
  Pack pack{.bytes = memory.part_bytes()};
  std::vector<Part> sorted;
  for (const size_t p : order) {
    sorted.push_back(payloads_.parts[p]);
    pack.offsets.push_back(memory.offset(static_cast<int64_t>(p)));
  }
  payloads_.parts = std::move(sorted);
  memory.renew();
  pack.to = memory.address();
  if (grid_.is_active()) add({.place = placement_.place_in(space), .space = space, .work = std::move(pack)});
}

core::Status BucketCompiler::all_gather_gradient(const Step& step) {
  const size_t d = RankGrid::dimension_of(step.level);
  RankGrid::Dimension& dimension = grid_[d];
  if (!dimension.split) return refuse("all_gather needs shards, or payloads; encode first");
  if (grid_.is_split_behind(d)) return refuse("shards of nodes are put side by side first");
  Collective gather = collective(step);
  gradient_.work_on(gather, placement_.space_of(step.level), grid_.padded_range_of(grid_.own_part()), grid_);
  gather.output.offset -= dimension.index * gather.count * comm::bytes_per_element(gather.wire);
  if (grid_.is_active()) add(step, gather);
  dimension.split = false;
  return {};
}

core::Status BucketCompiler::broadcast(const Step& step) {
  const size_t d = RankGrid::dimension_of(step.level);
  RankGrid::Dimension& dimension = grid_[d];
  if (!dimension.rooted) return refuse("broadcast needs what only one of these " + std::string(grid_[d].name) + " has");
  Collective sent = collective(step);
  const core::Space space = placement_.space_of(step.level);
  if (payloads_.exist) {
    sent.count = payloads_.memory.bytes();
    bring_payloads(space);
    sent.input = sent.output = payloads_.memory.address();
    payloads_.exchanged = true;
  } else {
    gradient_.work_on(sent, space, grid_.range_of(grid_.own_part()), grid_);
  }
  if (grid_.is_active(d)) add(step, sent);
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
  const bool has_state = rounds_.state_begin >= 0 && (!payloads_.exchanged || rounds_.codec->traits().rounds > 1);
  std::vector<Payload> all;
  for (const Part& part : payloads_.parts) {
    const Range range = grid_.range_of(part);
    const auto number = static_cast<int64_t>(all.size());
    std::vector<core::Matrix> matrices = matrices_in(range);
    const int64_t bytes = rounds_.codec->payload_bytes({range.length, matrices}, rounds_.next);
    all.push_back({payloads_.memory.offset(number), bytes, range, std::move(matrices),
                   has_state ? rounds_.state_begin + number * rounds_.state_bytes : -1});
  }
  return all;
}

// The part with the largest size, which is the first shard: all parts have this size, since collectives have one
// count. Matrices are cut differently in each shard, but then all ranks that sum the shard cut it alike.
Range BucketCompiler::longest_part() const {
  Part first = payloads_.parts.front();
  if (!rounds_.codec->traits().needs_matrices) {
    for (int& shard : first) shard = shard == RankGrid::kWhole ? RankGrid::kWhole : 0;
  }
  return grid_.range_of(first);
}

std::vector<core::Matrix> BucketCompiler::matrices_in(const Range& range) const {
  if (!rounds_.codec->traits().needs_matrices) return {};
  return core::matrices_within(matrices_, range.begin, range.length);
}

core::Error BucketCompiler::refuse_place() const {
  return refuse("all rounds of " + std::string(rounds_.codec->traits().name) + " work in one space");
}

core::Error BucketCompiler::refuse_round() const {
  if (rounds_.codec == nullptr) return refuse("a codec's rounds begin with 0");
  return refuse("round " + std::to_string(rounds_.next) + " of " + std::string(rounds_.codec->traits().name) +
                " is what comes next");
}

// --- operations ------------------------------------------------------------------------------------------------------

void BucketCompiler::add(const Step& step, const Collective& what) {
  add({.space = placement_.space_of(step.level), .step = step_, .work = what});
}

Collective BucketCompiler::collective(const Step& step) const {
  return {
      .kind = step.kind,
      .level = step.level,
      .among = core::is_dimension(step.level) ? std::optional(core::along(step.level, job_.seat.size)) : std::nullopt,
      .root = grid_[RankGrid::dimension_of(step.level)].root};
}

void BucketCompiler::bring_payloads(core::Space space) {
  PayloadBuffers& memory = payloads_.memory;
  const Address from = memory.address();
  if (memory.bring(space) && grid_.is_active()) add_copy(program_, from, memory.address(), memory.bytes());
}

// The current step, if the memory that it receives payloads into is shared. That is so if a decode comes next, but
// not if another collective does.
std::optional<size_t> BucketCompiler::shared_receiver() const {
  const auto step = static_cast<size_t>(step_);
  if (step + 1 == option_.steps.size() || core::is_collective(option_.steps[step + 1].kind)) return std::nullopt;
  return step;
}

core::Error BucketCompiler::refuse(const std::string& why) const {
  return {core::Error::Code::invalid,
          "program \"" + core::to_string(option_) + "\", step " + std::to_string(step_) + ": " + why};
}

}  // namespace gradtune::exec
