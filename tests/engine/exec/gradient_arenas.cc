// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/gradient_arenas.h"

#include <algorithm>
#include <cstring>

#include "engine/compress/compressor.h"
#include "engine/core/float16.h"
#include "engine/exec/device.h"

namespace gradtune::exec {

using core::DType;

core::GradientTable make_table(const std::vector<std::pair<int64_t, DType>>& tensors) {
  core::GradientTable table;
  for (const auto& [numel, dtype] : tensors) {
    const std::string name = "tensor" + std::to_string(table.tensors.size());
    int64_t rows = 1;
    for (int64_t divisor = 2; divisor * divisor <= numel; ++divisor) rows = numel % divisor == 0 ? divisor : rows;
    const std::vector<int64_t> shape = rows > 1 ? std::vector{rows, numel / rows} : std::vector{numel};
    table.tensors.push_back({.name = name, .shape = shape, .numel = numel, .dtype = dtype});
  }
  return table;
}

core::GradientTable mixed_table() {
  return make_table({{1, DType::f32},
                     {5, DType::bf16},
                     {1000, DType::f32},
                     {33, DType::f16},
                     {0, DType::f32},
                     {1501, DType::bf16},
                     {17, DType::f32},
                     {6011, DType::f32},
                     {700, DType::f16},
                     {2048, DType::f32}});
}

namespace {

// The nearest value of the dtype, in its first bytes.
std::array<std::byte, 8> bytes_of(DType dtype, float value) {
  std::array<std::byte, 8> bytes{};
  const auto put = [&](auto number) { std::memcpy(bytes.data(), &number, sizeof number); };
  switch (dtype) {
    case DType::f32: put(value); break;
    case DType::bf16: put(static_cast<uint16_t>(core::narrow_bf16(value))); break;
    case DType::f16: put(static_cast<uint16_t>(core::narrow_f16(value))); break;
    case DType::f64: put(static_cast<double>(value)); break;
  }
  return bytes;
}

template <typename T>
T number_at(const std::byte* bytes) {
  T number{};
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

float value_of(DType dtype, const std::byte* bytes) {
  switch (dtype) {
    case DType::f32: return number_at<float>(bytes);
    case DType::bf16: return core::widen_bf16(number_at<uint16_t>(bytes));
    case DType::f16: return core::widen_f16(number_at<uint16_t>(bytes));
    case DType::f64: return static_cast<float>(number_at<double>(bytes));
  }
  return 0;
}

}  // namespace

Values random_gradient(const core::GradientTable& table, core::Rng& rng) {
  Values values;
  for (const core::TensorInfo& tensor : table.tensors) {
    for (int64_t i = 0; i < tensor.numel; ++i) {
      const auto value = static_cast<float>(2 * rng.uniform() - 1);
      values.push_back(rng.below(10) == 0 ? 0 : value_of(tensor.dtype, bytes_of(tensor.dtype, value).data()));
    }
  }
  return values;
}

core::Strategy make_strategy(const core::GradientTable& table, const std::string& option, int64_t bytes,
                             int in_flight) {
  return core::uniform(core::cut(table, bytes, bytes, /*split=*/true),
                       core::parse_option(option, compress::known_traits()).value(), in_flight);
}

std::vector<std::string> all_options(core::Place place) {
  std::vector<core::Option> options;
  if (place == core::Place::device) options.push_back(core::plain_all_reduce());
  for (const core::CompressorTraits& traits : compress::known_traits()) {
    const core::CompressorSpec codec{std::string(traits.name), traits.name == "topk" ? 0.1 : traits.parameter_default};
    if (traits.summable) options.push_back(core::encoded_all_reduce(codec, place, traits.rounds));
    if (traits.rounds > 1) continue;
    options.push_back(core::two_step(codec, place));
    options.push_back(core::gather_payloads(codec, place));
  }
  std::vector<std::string> printed;
  for (const core::Option& option : options) printed.push_back(core::to_string(option));
  return printed;
}

core::Strategy random_strategy(const core::GradientTable& table, const std::vector<std::string>& options,
                               core::Rng& rng) {
  core::Strategy strategy{.buckets = {}, .order = {}, .in_flight = 1 + static_cast<int>(rng.below(5))};
  const auto bytes = 500 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(table.bytes())));
  std::vector<int32_t> turns;
  for (std::vector<core::Slice>& slices : core::cut(table, bytes, bytes, /*split=*/true)) {
    const core::Option option =
        core::parse_option(options[rng.below(options.size())], compress::known_traits()).value();
    for (const core::Step& step : option.steps) {
      if (core::is_collective(step.kind)) turns.push_back(static_cast<int32_t>(strategy.buckets.size()));
    }
    strategy.buckets.push_back({std::move(slices), option});
  }
  rng.shuffle(turns);
  std::vector<int32_t> next(strategy.buckets.size(), 0);
  for (const int32_t bucket : turns) {
    const std::vector<core::Step>& steps = strategy.buckets[static_cast<size_t>(bucket)].option.steps;
    int32_t& step = next[static_cast<size_t>(bucket)];
    while (!core::is_collective(steps[static_cast<size_t>(step)].kind)) ++step;
    strategy.order.push_back({bucket, step++});
  }
  return strategy;
}

core::GradientTable on_device(core::GradientTable table) {
  for (core::TensorInfo& tensor : table.tensors) tensor.space = core::Space::cuda;
  return table;
}

GradientArenas::GradientArenas(const core::GradientTable& table, Device* device)
    : table_(table), layout_(core::lay_arenas(table)), device_(device) {
  for (const core::ArenaInfo& arena : layout_.arenas) {
    const int64_t bytes = arena.numel * core::bytes_per_element(arena.dtype);
    const bool is_away = arena.space != core::Space::host;
    memory_.push_back(is_away ? AlignedBytes::zeros(bytes, &device_->memory()) : AlignedBytes(bytes));
    pinned_.push_back(is_away ? AlignedBytes::zeros(bytes, &device_->pinned()) : AlignedBytes());
    arenas_.push_back({memory_.back().data(), arena.numel, arena.space});
  }
}

template <typename Visit>
void GradientArenas::visit(Visit visit) const {
  size_t flat = 0;
  for (size_t t = 0; t < table_.tensors.size(); ++t) {
    const auto [arena, begin] = layout_.tensors[t];
    for (int64_t i = 0; i < table_.tensors[t].numel; ++i) visit(flat++, static_cast<size_t>(arena), begin + i);
  }
}

void GradientArenas::write(const Values& gradient) {
  if (device_ != nullptr) device_->current().mark().wait(10'000).value();  // it may still read pinned memory
  visit([&](size_t flat, size_t arena, int64_t at) {
    const DType dtype = layout_.arenas[arena].dtype;
    const auto width = static_cast<size_t>(core::bytes_per_element(dtype));
    std::memcpy(here(arena) + static_cast<size_t>(at) * width, bytes_of(dtype, gradient[flat]).data(), width);
  });
  for (size_t arena = 0; arena < memory_.size(); ++arena) {
    if (here(arena) == arenas_[arena].data) continue;
    device_->current().copy(arenas_[arena].data, pinned_[arena].data(), memory_[arena].bytes());
  }
}

std::byte* GradientArenas::here(size_t arena) const {
  return layout_.arenas[arena].space == core::Space::host ? arenas_[arena].data : pinned_[arena].data();
}

Values GradientArenas::read() const {
  for (size_t arena = 0; arena < memory_.size(); ++arena) {
    if (here(arena) == arenas_[arena].data) continue;
    device_->current().copy(pinned_[arena].data(), arenas_[arena].data, memory_[arena].bytes());
    device_->current().mark().wait(60'000).value();
  }
  Values values;
  values.reserve(static_cast<size_t>(table_.numel()));
  visit([&](size_t, size_t arena, int64_t at) {
    const DType dtype = layout_.arenas[arena].dtype;
    values.push_back(value_of(dtype, here(arena) + at * core::bytes_per_element(dtype)));
  });
  return values;
}

Values GradientArenas::read(const Program& program, const Residuals& residuals, Which which) const {
  Values values(static_cast<size_t>(table_.numel()));
  if (!residuals.allocated()) return values;
  std::vector<Values> by_arena;
  for (const core::ArenaInfo& arena : layout_.arenas) by_arena.emplace_back(static_cast<size_t>(arena.numel));
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const BucketProgram& bucket = program.buckets[b];
    float* to = by_arena[static_cast<size_t>(bucket.arena)].data() + bucket.arena_begin;
    if (which != Which::parked) std::copy_n(residuals.current(bucket, b), bucket.numel, to);
    if (which == Which::current || !residuals.has_parked()) continue;
    for (int64_t i = 0; i < bucket.numel; ++i) to[i] += residuals.parked(bucket)[i] * residuals.parked_share(b);
  }
  visit([&](size_t flat, size_t arena, int64_t at) { values[flat] = by_arena[arena][static_cast<size_t>(at)]; });
  return values;
}

}  // namespace gradtune::exec
