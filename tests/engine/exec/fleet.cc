// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/fleet.h"

#include <cstring>
#include <numeric>

#include "engine/compress/compressor.h"
#include "engine/core/float16.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {

using core::DType;

// --- Tables, gradients, strategies -------------------------------------------------------------------------------------------

core::GradientTable make_table(const std::vector<std::pair<int64_t, DType>>& tensors) {
  core::GradientTable table;
  for (const auto& [numel, dtype] : tensors) {
    table.tensors.push_back({.name = "tensor" + std::to_string(table.tensors.size()), .shape = {numel}, .numel = numel, .dtype = dtype});
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

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::f32: return value;
    case DType::bf16: return core::widen_bf16(core::narrow_bf16(value));
    case DType::f16: return core::widen_f16(core::narrow_f16(value));
  }
  return value;
}

Values random_gradient(const core::GradientTable& table, core::Rng& rng) {
  Values values;
  for (const core::TensorInfo& tensor : table.tensors) {
    for (int64_t i = 0; i < tensor.numel; ++i) {
      const auto value = static_cast<float>(2 * rng.uniform() - 1);
      values.push_back(rng.below(10) == 0 ? 0 : round_to(tensor.dtype, value));
    }
  }
  return values;
}

core::Strategy make_strategy(const core::GradientTable& table, const std::string& option, int64_t bytes, int in_flight) {
  return core::uniform(core::cut(table, bytes, bytes, /*split=*/true),
                       core::parse_option(option, compress::known_traits()).value(), in_flight);
}

std::vector<std::string> all_options(core::Place place) {
  std::vector<core::Option> options;
  if (place == core::Place::device) options.push_back(core::plain_all_reduce());
  for (const core::CompressorTraits& traits : compress::known_traits()) {
    const core::CompressorSpec codec{std::string(traits.name), traits.name == "topk" ? 0.1 : traits.parameter_default};
    if (traits.summable) options.push_back(core::encoded_all_reduce(codec, place));
    options.push_back(core::two_step(codec, place));
    options.push_back(core::gather_payloads(codec, place));
  }
  std::vector<std::string> printed;
  for (const core::Option& option : options) printed.push_back(core::to_string(option));
  return printed;
}

// --- One rank ----------------------------------------------------------------------------------------------------------------

Rank::Rank(const core::GradientTable& table, std::unique_ptr<comm::Communicator> data,
           std::unique_ptr<comm::Communicator> control, const ExecutorOptions& options)
    : table_(table), data_(std::move(data)), control_(std::move(control)) {
  for (const core::TensorInfo& tensor : table.tensors) arenas_[static_cast<size_t>(tensor.dtype)].numel += tensor.numel;
  for (size_t d = 0; d < arenas_.size(); ++d) {
    memory_[d] = AlignedBytes(arenas_[d].numel * core::bytes_per_element(static_cast<DType>(d)));
    arenas_[d].data = memory_[d].data();
  }
  executor_ = std::make_unique<Executor>(*data_, *control_, clock_, options, [this](bool finite) {
    const auto hash = static_cast<double>(core::hash(executor_->strategy()) >> 11);  // exact in a double
    word_ = {finite ? 0.0 : 1.0, hash, -hash};
    return std::span<double>(word_);
  });
  executor_->set_gradients(table_, arenas_);
  ready_order.resize(table.tensors.size());
  std::iota(ready_order.begin(), ready_order.end(), 0);
}

Rank::~Rank() { close(); }

void Rank::close() {
  executor_->stop();
  data_.reset();
  control_.reset();
}

template <typename Visit>
void Rank::visit(Visit visit) const {
  std::array<int64_t, 3> next{};
  size_t flat = 0;
  for (const core::TensorInfo& tensor : table_.tensors) {
    for (int64_t i = 0; i < tensor.numel; ++i) visit(flat++, tensor.dtype, next[static_cast<size_t>(tensor.dtype)]++);
  }
}

void Rank::load(const Values& gradient) {
  visit([&](size_t flat, DType dtype, int64_t at) {
    std::byte* to = arenas_[static_cast<size_t>(dtype)].data + at * core::bytes_per_element(dtype);
    const float value = gradient[flat];
    const uint16_t bits = dtype == DType::bf16 ? core::narrow_bf16(value) : core::narrow_f16(value);
    dtype == DType::f32 ? std::memcpy(to, &value, 4) : std::memcpy(to, &bits, 2);
  });
}

Values Rank::average() const {
  Values values;
  visit([&](size_t, DType dtype, int64_t at) {
    const std::byte* from = arenas_[static_cast<size_t>(dtype)].data + at * core::bytes_per_element(dtype);
    float value = 0;
    uint16_t bits = 0;
    dtype == DType::f32 ? std::memcpy(&value, from, 4) : std::memcpy(&bits, from, 2);
    values.push_back(dtype == DType::f32 ? value : dtype == DType::bf16 ? core::widen_bf16(bits) : core::widen_f16(bits));
  });
  return values;
}

Values Rank::residual() {
  Values values(static_cast<size_t>(table_.numel()));
  if (!executor_->residuals().allocated()) return values;
  const auto program = compile(executor_->strategy(), table_, 0, 1);  // the same buckets on every rank
  std::array<Values, 3> arenas;
  for (size_t d = 0; d < arenas.size(); ++d) arenas[d].resize(static_cast<size_t>(arenas_[d].numel));
  for (size_t b = 0; b < program.value()->buckets.size(); ++b) {
    const BucketProgram& bucket = program.value()->buckets[b];
    std::copy_n(executor_->residuals().current(bucket, b), bucket.numel,
                arenas[static_cast<size_t>(bucket.dtype)].begin() + bucket.arena_begin);
  }
  visit([&](size_t flat, DType dtype, int64_t at) { values[flat] = arenas[static_cast<size_t>(dtype)][static_cast<size_t>(at)]; });
  return values;
}

core::Status Rank::backward() {
  executor_->begin_step();
  for (const int32_t tensor : ready_order) executor_->tensor_ready(tensor);
  return executor_->finish_step();
}

core::Status Rank::step(const Values& gradient) {
  load(gradient);
  if (core::Status status = backward(); !status) return status;
  if (word_[1] != -word_[2]) return core::Error{core::Error::Code::mismatch, "ranks run different strategies"};
  return settle();
}

// --- All ranks ---------------------------------------------------------------------------------------------------------------

Fleet::Fleet(int size, const core::GradientTable& table, const ExecutorOptions& options, comm::ThreadGroupOptions data,
             comm::ThreadGroupOptions control) {
  auto data_group = comm::make_thread_group(size, std::move(data));
  auto control_group = comm::make_thread_group(size, std::move(control));
  for (size_t r = 0; r < data_group.size(); ++r) {
    ranks_.push_back(std::make_unique<Rank>(table, std::move(data_group[r]), std::move(control_group[r]), options));
  }
}

void Fleet::run(const core::Strategy& strategy) {
  const int32_t before = slot_;
  slot_ = before == 0 ? 1 : 0;
  for (auto& rank : ranks_) {
    rank->executor().prepare(slot_, strategy).value();
    rank->executor().run(slot_);
    if (before >= 0) rank->executor().drop(before);
  }
}

std::vector<core::Status> Fleet::step(const std::vector<Values>& gradients) {
  std::vector<core::Status> statuses(ranks_.size());
  suites::on_every_rank(size(), [&](int r) {
    statuses[static_cast<size_t>(r)] = rank(r).step(gradients[static_cast<size_t>(r)]);
  });
  return statuses;
}

std::vector<Values> Fleet::residuals() {
  std::vector<Values> values;
  for (auto& rank : ranks_) values.push_back(rank->residual());
  return values;
}

}  // namespace gradtune::exec
