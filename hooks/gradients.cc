// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/gradients.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/bounded_wait.h"
#include "engine/core/hash.h"
#include "hooks/refusal.h"

namespace gradtune {
namespace {

constexpr int64_t kSampledBytes = 2;  // of a parameter: it has one element or more

core::DType dtype_of(const torch::Tensor& parameter, const std::string& name) {
  switch (parameter.scalar_type()) {
    case torch::kFloat: return core::DType::f32;
    case torch::kBFloat16: return core::DType::bf16;
    case torch::kHalf: return core::DType::f16;
    case torch::kDouble: return core::DType::f64;
    default:
      refuse("parameter " + name + " is " + std::string(torch::toString(parameter.scalar_type())) +
             "; gradients may be float32, float64, bfloat16 or float16");
  }
}

// The memory of a tensor's elements, from the first byte to one past the last.
struct Extent {
  const std::byte *begin, *end;
  const std::string* name;
};

Extent extent_of(const NamedTensor& parameter) {
  const torch::Tensor& tensor = parameter.tensor;
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * tensor.element_size(), &parameter.name};
}

void check_apart(std::vector<Extent> extents) {
  std::ranges::sort(extents, {}, &Extent::begin);
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    refuse("parameter " + *extents[i].name + " shares memory with " + *extents[i - 1].name +
           ", but is not the same tensor; each would be updated by its own gradient");
  }
}

// Dimensions of size one come last, because their strides mean nothing.
std::vector<int32_t> memory_order(const torch::Tensor& parameter) {
  const std::vector<int64_t> strides = gradient_strides(parameter);
  std::vector<int32_t> order, of_one;
  for (int32_t d = 0; d < static_cast<int32_t>(strides.size()); ++d)
    (parameter.size(d) == 1 ? of_one : order).push_back(d);
  const auto stride = [&](int32_t d) { return strides[static_cast<size_t>(d)]; };
  if (std::ranges::is_sorted(order, std::ranges::greater(), stride)) return {};
  std::ranges::stable_sort(order, std::ranges::greater(), stride);
  order.insert(order.end(), of_one.begin(), of_one.end());
  return order;
}

// True if the memory holds the tensor's values: LibTorch applies lazy negation, conjugation and zeros only at a
// read.
bool is_in_memory(const torch::Tensor& tensor) {
  return !tensor.is_neg() && !tensor.is_conj() && !tensor._is_zerotensor();
}

// True if elements of equal indices have equal offsets. A dimension of size one has no stride.
bool lie_alike(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

}  // namespace

// The hook also shows that a parameter belongs to a live wrap.
class Gradients::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(Gradients& gradients, size_t registered) : gradients_(gradients), registered_(registered) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    gradients_.calls_.ready(gradients_.position_of_[registered_]);
    return outputs;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const override {
    gradients_.calls_.compiled();
  }

  // The Gradients of another wrap that has a hook on that parameter; null if there is none.
  static Gradients* other_on(const torch::Tensor& parameter) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
    if (!accumulator) return nullptr;
    for (const auto& hook : accumulator->post_hooks()) {
      if (const auto* ours = dynamic_cast<const Hook*>(hook.get())) return &ours->gradients_;
    }
    return nullptr;
  }

 private:
  Gradients& gradients_;
  const size_t registered_;
};

std::vector<int64_t> gradient_strides(const torch::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? parameter.strides().vec()
             : torch::empty_like(parameter, torch::MemoryFormat::Contiguous).strides().vec();
}

Gradients::Gradients(const Model& model, const void* owner, Warnings& warnings, Arrival arrival,
                     std::shared_ptr<exec::Device> device)
    : owner_(owner),
      warnings_(warnings),
      arrival_(arrival),
      device_(std::move(device)),
      sample_(exec::AlignedBytes::zeros(8 * kSampledBytes, device_ ? &device_->pinned() : nullptr)) {
  std::vector<Extent> extents;
  bool any = false;
  Gradients* before = nullptr;  // the wrap of the same optimizer
  for (const NamedTensor& parameter : model.parameters()) {
    const auto& [name, tensor] = parameter;
    if (!tensor.requires_grad()) continue;
    any = true;
    if (!tensor.is_leaf()) {
      refuse("parameter " + name + " is the result of an operation; only leaves have gradients of their own");
    }
    if (tensor.numel() == 0) continue;  // it has no elements to communicate
    Gradients* const other = Hook::other_on(tensor);
    if (other != nullptr && other->owner_ == owner_ && other != before) (before = other)->calls_.finish();
    if (other != nullptr && other->owner_ != owner_) {
      refuse(
          "parameter " + name +
          " belongs to another wrapped optimizer that still lives, and its gradients would be averaged twice; several "
          "optimizers of one model belong into one call of wrap, as a list, or the other one has to end first");
    }
    table_.tensors.push_back({.name = name,
                              .shape = tensor.sizes().vec(),
                              .numel = tensor.numel(),
                              .dtype = dtype_of(tensor, name),
                              .space = device_ ? core::Space::cuda : core::Space::host,
                              .memory_order = memory_order(tensor)});
    parameters_.push_back({.tensor = tensor, .slot = {}, .memory = nullptr, .given = {}, .accumulator = {}});
    extents.push_back(extent_of(parameter));
  }
  if (!any) refuse("the module has no parameter that requires a gradient");
  check_apart(std::move(extents));
  std::reverse(table_.tensors.begin(), table_.tensors.end());
  std::reverse(parameters_.begin(), parameters_.end());
  position_of_.resize(parameters_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    position_of_[p] = static_cast<int32_t>(p);
    registered_[parameters_[p].tensor.unsafeGetTensorImpl()] = p;
  }
  allocate();
}

Gradients::~Gradients() {
  end();
  if (!sampled_.wait(core::kMostWaitMs)) sample_.abandon();
}

void Gradients::end() {
  ended_ = true;
  for (Parameter& parameter : parameters_) {
    if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
    parameter.accumulator.reset();
  }
}

void Gradients::allocate() {
  layout_ = core::lay_arenas(table_);
  arenas_.clear();
  for (const core::ArenaInfo& arena : layout_.arenas) {
    const int64_t bytes = arena.numel * bytes_per_element(arena.dtype);
    arenas_.push_back(std::make_shared<ArenaMemory>(device_, device_
                                                                 ? exec::AlignedBytes::zeros(bytes, &device_->memory())
                                                                 : exec::AlignedBytes::untouched_zeros(bytes)));
  }
  for (size_t p = 0; p < parameters_.size(); ++p) lay_slot(p);
}

void Gradients::touch() {
  if (device_) return;  // a device's memory needs no page faults
  constexpr int64_t kPageBytes = 4096;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const core::TensorInfo& tensor = table_.tensors[p];
    if (tensor.content != core::Content()) continue;
    for (int64_t at = 0; at < tensor.numel * bytes_per_element(tensor.dtype); at += kPageBytes) {
      volatile std::byte& byte = parameters_[p].memory[at];
      byte = byte;
    }
  }
}

void Gradients::lay_slot(size_t p) {
  const auto [arena, begin] = layout_.tensors[p];
  const std::shared_ptr<ArenaMemory>& memory = arenas_[static_cast<size_t>(arena)];
  const torch::Tensor& parameter = parameters_[p].tensor;
  parameters_[p].memory = memory->bytes.data() + begin * bytes_per_element(table_.tensors[p].dtype);
  // from_blob, not a view of one tensor, so that optimizers may detach_() it.
  parameters_[p].slot = at::for_blob(parameters_[p].memory, parameter.sizes())
                            .strides(gradient_strides(parameter))
                            .deleter([memory](void*) {})
                            .options(torch::TensorOptions(parameter.scalar_type()).device(parameter.device()))
                            .target_device(parameter.device())
                            .make_tensor();
}

// A program may give the gradient's tensor other memory, as Python's model.to() does even if nothing has to move.
void Gradients::keep_slot(size_t p) {
  if (parameters_[p].slot.const_data_ptr() != parameters_[p].memory) lay_slot(p);
}

exec::Arenas Gradients::arenas() const {
  exec::Arenas arenas;
  for (size_t a = 0; a < arenas_.size(); ++a) {
    arenas.push_back({arenas_[a]->bytes.data(), layout_.arenas[a].numel, layout_.arenas[a].space});
  }
  return arenas;
}

void Gradients::lay(const std::vector<int32_t>& order) {
  std::vector<bool> named(parameters_.size());
  for (const int32_t old : order) {
    const bool is_one = old >= 0 && static_cast<size_t>(old) < named.size() && !named[static_cast<size_t>(old)];
    core::check(is_one, "an order names parameters, and none twice");
    named[static_cast<size_t>(old)] = true;
  }
  core::check(order.size() == parameters_.size(), "an order names every parameter");
  const torch::NoGradGuard no_grad;
  std::vector<Parameter> old_parameters = std::move(parameters_);
  const core::GradientTable old_table = std::move(table_);
  std::vector<int32_t> new_position(order.size());
  parameters_.clear();
  table_ = {};
  for (size_t p = 0; p < order.size(); ++p) {
    const auto old = static_cast<size_t>(order[p]);
    new_position[old] = static_cast<int32_t>(p);
    parameters_.push_back(old_parameters[old]);
    table_.tensors.push_back(old_table.tensors[old]);
  }
  for (int32_t& position : position_of_) position = new_position[static_cast<size_t>(position)];
  allocate();
  for (size_t p = 0; p < order.size(); ++p) {
    Parameter& parameter = parameters_[p];
    torch::Tensor& gradient = gradient_of(parameter);
    if (gradient.defined() && !gradient.is_sparse() &&
        gradient.data_ptr() == old_parameters[static_cast<size_t>(order[p])].slot.data_ptr()) {
      parameter.slot.copy_(gradient);
      gradient = parameter.slot;
    }
  }
  if (device_) device_->current().mark().wait(core::kMostWaitMs).value();  // the memory that it reads is freed next
}

const std::function<core::Status()>* Gradients::alarm_before() const {
  const Gradients* before = parameters_.empty() ? nullptr : Hook::other_on(parameters_.front().tensor);
  return before == nullptr || before == this ? nullptr : &before->calls_.alarm;
}

void Gradients::set_hooks(Calls calls) {
  calls_ = std::move(calls);
  // Hooks know a parameter by its order of registration, because the arena may be laid out anew.
  if (arrival_ == Arrival::handed_over) return;
  for (size_t i = 0; i < position_of_.size(); ++i) {
    Parameter& parameter = parameters_[static_cast<size_t>(position_of_[i])];
    if (Gradients* before = Hook::other_on(parameter.tensor)) before->end();
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<Hook>(*this, i));
  }
}

core::Status Gradients::check_hooked() const {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Parameter& parameter = parameters_[p];
    const bool is_hooked = arrival_ == Arrival::handed_over ||
                           torch::autograd::impl::try_get_grad_accumulator(parameter.tensor) == parameter.accumulator;
    if (is_hooked && parameter.tensor.sizes() == parameter.slot.sizes()) continue;
    return core::Error{core::Error::Code::invalid,
                       "gradtune: parameter " + table_.tensors[p].name +
                           " was moved, converted or replaced since wrap; wrap the optimizer after the model is where "
                           "it is trained"};
  }
  return {};
}

// Copies the gradient into its slot, wherever it is.
void Gradients::adopt(int32_t position) {
  Parameter& parameter = parameters_[static_cast<size_t>(position)];
  torch::Tensor& gradient = gradient_of(parameter);
  const torch::NoGradGuard no_grad;
  const bool is_over_slot = gradient.const_data_ptr() == parameter.slot.const_data_ptr();
  parameter.slot.copy_(is_over_slot ? gradient.clone() : gradient);
  gradient = parameter.slot;
}

Gradients::Use Gradients::use_of(int32_t position) const {
  const torch::Tensor& gradient = gradient_of(parameters_[static_cast<size_t>(position)]);
  if (!gradient.defined()) return Use::none;
  return gradient.is_sparse() ? Use::rows : Use::dense;
}

// Brings rows if only the gradient's first dimension is sparse and its slot has contiguous rows.
bool Gradients::bring_rows(const core::TensorInfo& tensor, const torch::Tensor& gradient, const Parameter& parameter,
                           Brought& brought) {
  const auto& slot = parameter.slot;
  brought.use = Use::rows;
  if (gradient.sparse_dim() != 1 || slot.dim() < 2 || !tensor.is_row_major()) {
    const torch::Tensor& dense = brought.memory[0] = torch::zeros_like(slot).add_(gradient.coalesce());
    brought.arrived = exec::Arrived::dense_at(static_cast<const std::byte*>(dense.const_data_ptr()));
    return dense.numel() == tensor.numel;
  }
  const torch::Tensor& rows = brought.memory[0] = gradient._indices().select(0, 0).contiguous();
  const torch::Tensor& values = brought.memory[1] = gradient._values().contiguous();
  brought.arrived = {.kind = exec::Arrived::Kind::rows,
                     .values = static_cast<const std::byte*>(values.const_data_ptr()),
                     .rows = {rows.const_data_ptr<int64_t>(), static_cast<size_t>(rows.numel())}};
  if (gradient.is_coalesced() || !compress::has_repeated(brought.arrived.rows, slot.size(0), scratch_)) return true;
  const torch::Tensor& order = brought.memory[2] = std::get<1>(rows.sort());  // as in coalesce(): not a stable sort
  brought.arrived.order = {order.const_data_ptr<int64_t>(), static_cast<size_t>(order.numel())};
  return true;
}

void Gradients::check_kind(int32_t position, const torch::Tensor& gradient) const {
  const Parameter& parameter = parameters_[static_cast<size_t>(position)];
  const core::TensorInfo& tensor = table_.tensors[static_cast<size_t>(position)];
  if (gradient.scalar_type() != parameter.tensor.scalar_type() || gradient.device() != parameter.tensor.device()) {
    refuse("the gradient of " + tensor.name + " is " + std::string(torch::toString(gradient.scalar_type())) + " on " +
           gradient.device().str() + ", its parameter is " +
           std::string(torch::toString(parameter.tensor.scalar_type())) + " on " + parameter.tensor.device().str());
  }
  if (gradient.layout() != torch::kStrided && gradient.layout() != torch::kSparse) {
    refuse("the gradient of " + tensor.name + " is of layout " + c10::str(gradient.layout()) +
           "; allowed are dense and sparse COO gradients");
  }
}

Gradients::Brought Gradients::bring(int32_t position) {
  keep_slot(static_cast<size_t>(position));
  Parameter& parameter = parameters_[static_cast<size_t>(position)];
  const core::TensorInfo& tensor = table_.tensors[static_cast<size_t>(position)];
  torch::Tensor& gradient = gradient_of(parameter);
  if (!gradient.defined()) return {.arrived = {.kind = exec::Arrived::Kind::none}, .use = Use::none};
  check_kind(position, gradient);
  const torch::NoGradGuard no_grad;
  Brought brought;
  if (gradient.is_sparse()) {
    parameter.was_sparse = true;
    if (device_) {  // only the host's compressors work on lists of rows
      gradient = gradient.coalesce();
      parameter.slot.zero_().add_(gradient);
      brought.use = Use::rows;
      return brought;
    }
    core::check(bring_rows(tensor, gradient, parameter, brought), "a gradient has the shape of its parameter");
    return brought;
  }
  if (!is_in_memory(gradient) || !lie_alike(gradient, parameter.slot)) {
    adopt(position);
    return brought;
  }
  if (gradient.const_data_ptr() == parameter.slot.const_data_ptr()) return brought;
  const torch::Tensor& elsewhere = brought.memory[0] = std::exchange(gradient, parameter.slot);
  brought.arrived = exec::Arrived::dense_at(static_cast<const std::byte*>(elsewhere.const_data_ptr()));
  return brought;
}

void Gradients::keep(Brought brought) {
  for (torch::Tensor& memory : brought.memory) {
    if (memory.defined()) kept_.push_back(std::move(memory));
  }
}

void Gradients::give_dense(int32_t position) {
  Parameter& parameter = parameters_[static_cast<size_t>(position)];
  torch::Tensor& gradient = gradient_of(parameter);
  if (!gradient.defined() || gradient.is_sparse() || gradient.data_ptr() != parameter.slot.data_ptr()) {
    gradient = parameter.slot;
  }
}

void Gradients::give_rows(int32_t position, const exec::Workspace::Listed& listed) {
  Parameter& parameter = parameters_[static_cast<size_t>(position)];
  const torch::NoGradGuard no_grad;
  torch::Tensor rows, values;
  if (listed.rows == nullptr) {
    const torch::Tensor is_used =
        parameter.slot.dim() > 1 ? parameter.slot.flatten(1).ne(0).any(1) : parameter.slot.ne(0);
    rows = is_used.nonzero().squeeze(1);
    values = parameter.slot.index_select(0, rows);
  } else {
    const std::span<const uint64_t> order = compress::by_row_number(*listed.rows, *listed.order, scratch_);
    std::vector<int64_t> sizes = parameter.slot.sizes().vec();
    sizes[0] = listed.rows->count;
    rows = torch::empty({sizes[0]}, torch::kLong);
    values = torch::empty(sizes, parameter.slot.options());
    auto* const numbers = rows.mutable_data_ptr<int64_t>();
    auto* const to = values.mutable_data_ptr<float>();
    for (size_t k = 0; k < order.size(); ++k) {
      const auto from = static_cast<int64_t>(order[k] & 0xffffffff);
      numbers[k] = static_cast<int64_t>(order[k] >> 32);
      std::memcpy(to + static_cast<int64_t>(k) * listed.width, listed.rows->values + from * listed.width,
                  static_cast<size_t>(listed.width) * sizeof(float));
    }
  }
  torch::Tensor sparse =
      torch::_sparse_coo_tensor_unsafe(rows.unsqueeze(0), values, parameter.slot.sizes(), parameter.slot.options());
  sparse._coalesced_(true);
  gradient_of(parameter) = sparse;
  parameter.gave_rows = true;
}

double Gradients::share_of_rows(int32_t position) const {
  const torch::Tensor gradient = gradient_of(parameters_[static_cast<size_t>(position)]);
  check_kind(position, gradient);  // the first pass asks for the share before it brings the gradient
  if (gradient.sparse_dim() == 1 && gradient.is_coalesced()) {
    return static_cast<double>(gradient._nnz()) / static_cast<double>(gradient.size(0));
  }
  const torch::Tensor indices = gradient._indices().select(0, 0).cpu().contiguous();
  std::vector<int64_t> rows(indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel());
  std::ranges::sort(rows);
  const auto repeated = std::ranges::unique(rows);
  return static_cast<double>(rows.size() - repeated.size()) / static_cast<double>(gradient.size(0));
}

// Samples rows at equal distances, different ones in each step. It takes a few microseconds at any size.
double Gradients::sampled_share(int32_t position, const std::byte* values, int64_t step) const {
  constexpr int64_t kSampled = 256, kLeastRows = 4096, kLeastElements = int64_t{1} << 20;
  const core::TensorInfo& tensor = table_.tensors[static_cast<size_t>(position)];
  const Parameter& parameter = parameters_[static_cast<size_t>(position)];
  const bool is_matrix = tensor.shape.size() > 1 && tensor.dtype == core::DType::f32 && tensor.is_row_major();
  if (device_ || !is_matrix || tensor.shape[0] < kLeastRows || tensor.numel < kLeastElements) return -1;
  const int64_t rows = tensor.shape[0], width = tensor.numel / rows;
  const auto* const all = reinterpret_cast<const float*>(values == nullptr ? parameter.memory : values);
  const auto first =
      static_cast<int64_t>(static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15 % static_cast<uint64_t>(rows));
  int64_t used = 0;
  for (int64_t i = 0; i < kSampled; ++i) {
    const float* const row = all + (first + i * rows / kSampled) % rows * width;
    used += std::any_of(row, row + width, [](float value) { return value != 0; }) ? 1 : 0;  // NaN counts as not zero
  }
  return static_cast<double>(used) / kSampled;
}

void Gradients::set_content(int32_t position, const core::Content& content) {
  table_.tensors[static_cast<size_t>(position)].content = content;
}

void Gradients::set_rows(int32_t position, double of_one, double of_all) {
  core::TensorInfo& tensor = table_.tensors[static_cast<size_t>(position)];
  tensor.content = {
      .row = tensor.row_width(), .of_one = of_one, .of_all = of_all, .high_one = of_one, .high_all = of_all};
}

bool Gradients::was_sparse(int32_t position) const { return at(position).was_sparse || averages_were_sparse(position); }

bool Gradients::averages_were_sparse(int32_t position) const {
  return at(position).gave_rows || table_.tensors[static_cast<size_t>(position)].content != core::Content();
}

void Gradients::forget(int32_t position) {
  Parameter& parameter = parameters_[static_cast<size_t>(position)];
  if (arrival_ == Arrival::handed_over) parameter.slot.zero_();  // the owner of the gradient expects a tensor
  gradient_of(parameter).reset();
}

torch::Tensor& Gradients::gradient_of(Parameter& parameter) const {
  return arrival_ == Arrival::hooks ? parameter.tensor.mutable_grad() : parameter.given;
}

const torch::Tensor& Gradients::gradient_of(const Parameter& parameter) const {
  return arrival_ == Arrival::hooks ? parameter.tensor.grad() : parameter.given;
}

std::vector<torch::Tensor> Gradients::trained() const {
  std::vector<torch::Tensor> trained;  // the last one of the model was registered first
  for (size_t p = position_of_.size(); p-- > 0;) trained.push_back(parameter(position_of_[p]));
  return trained;
}

int32_t Gradients::position_of(const torch::Tensor& parameter) const {
  const auto found = registered_.find(parameter.unsafeGetTensorImpl());
  return found == registered_.end() ? -1 : position_of_[found->second];
}

int32_t Gradients::hand_over(const torch::Tensor& parameter, torch::Tensor gradient) {
  const int32_t position = position_of(parameter);
  if (position >= 0) parameters_[static_cast<size_t>(position)].given = std::move(gradient);
  return position;
}

void Gradients::give_back(const torch::Tensor& parameter, torch::Tensor& gradient) {
  const int32_t position = position_of(parameter);
  if (position < 0) return;
  Parameter& found = parameters_[static_cast<size_t>(position)];
  const torch::NoGradGuard no_grad;
  if (found.given.defined() && found.given.is_sparse()) {
    gradient = found.given;
  } else {
    gradient.copy_(found.slot);
  }
  found.given.reset();
}

// Version counters do not show the change, because optimizers write through data().
// A device takes few values, because each is a copy that is asked for on the thread that runs backward. Versions, which
// cost nothing, show most updates, but not those of fused optimizers or through `.data`.
void Gradients::take_sample(int64_t step) {
  const size_t all = position_of_.size();  // by registration, because the arena may be laid out anew meanwhile
  core::Hasher versions;
  for (size_t i = 0; device_ && i < all; ++i) {
    versions.add(parameter(position_of_[i]).unsafeGetTensorImpl()->version_counter().current_version());
  }
  sampled_versions_ = versions.value();
  const size_t count = std::min<size_t>(device_ ? 2 : 8, all);
  for (size_t i = 0; i < count; ++i) {
    const size_t registered = (i * all / count + static_cast<size_t>(step)) % all;
    const void* const value = parameter(position_of_[registered]).const_data_ptr();
    std::byte* const to = sample_.data() + i * kSampledBytes;
    if (device_) {
      compress::device(device_->current()).copy(to, value, kSampledBytes);
    } else {
      std::memcpy(to, value, kSampledBytes);
    }
  }
  if (device_) sampled_ = device_->current().mark();
}

uint64_t Gradients::sample() const {
  sampled_.wait(core::kMostWaitMs).value();
  core::Hasher hasher;
  hasher.add(sampled_versions_);
  hasher.add(std::string_view(reinterpret_cast<const char*>(sample_.data()), static_cast<size_t>(sample_.bytes())));
  return hasher.value();
}

}  // namespace gradtune
