// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/gradient_at_hand.h"

namespace gradtune::exec {

void add_copy(BucketProgram& program, const Address& from, const Address& to, int64_t bytes) {
  program.ops.push_back({.space = core::Space::cuda, .work = Copy{.from = from, .to = to, .bytes = bytes}});
}

Address GradientAtHand::numbers_in(core::Space space) {
  Address& numbers = program_.numbers[space];
  if (!has_numbers_[space]) {
    numbers = space == program_.space ? Address{Address::Region::gradient}
                                      : in_pool(space, layout_.allocate(space, numbers_bytes()));
  }
  has_numbers_[space] = true;
  return numbers;
}

Address GradientAtHand::dense_in(core::Space space) {
  if (program_.staged == 0) return program_.dense[space] = numbers_in(space);
  if (!has_dense_[space]) program_.dense[space] = in_pool(space, layout_.allocate(space, program_.staged * 4));
  has_dense_[space] = true;
  return program_.dense[space];
}

void GradientAtHand::copy_numbers(core::Space from, core::Space to) {
  const Address source = numbers_in(from);
  add_copy(program_, source, numbers_in(to), numbers_bytes());
}

void GradientAtHand::bring(core::Space space, const RankGrid& grid) {
  Address to = dense_in(space);
  if (space_ == space) return;
  Address from = dense_in(space_);
  space_ = space;
  const bool is_staged = program_.staged > 0;
  const Range range = is_staged ? grid.padded_range_of(grid.own_part()) : grid.range_of(grid.own_part());
  const int64_t width = is_staged ? 4 : core::bytes_per_element(program_.dtype);
  from.offset += range.begin * width;
  to.offset += range.begin * width;
  if (grid.is_active()) add_copy(program_, from, to, range.length * width);
}

void GradientAtHand::work_on(Collective& what, core::Space space, const Range& range, const RankGrid& grid) {
  bring(space, grid);
  what.wire = program_.staged > 0 ? comm::WireType::f32 : core::wire_type_of(program_.dtype);
  what.count = range.length;
  what.input = dense_in(space);
  what.input.offset += range.begin * comm::bytes_per_element(what.wire);
  what.output = what.input;
}

}  // namespace gradtune::exec
