// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fake_sparse.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <torch/library.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <vector>

#include "tests/hooks/fake_device.h"

namespace gradtune::test {
namespace {

at::Tensor sparse_of(const at::Tensor& indices, const at::Tensor& values, const at::Tensor& like) {
  const at::TensorOptions options = like.options().device(values.device());
  return at::_sparse_coo_tensor_unsafe(indices, values, like.sizes(), options, like.is_coalesced());
}

at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  if (!tensor.is_sparse()) return tensor.to(device);
  return sparse_of(tensor._indices().to(device), tensor._values().to(device), tensor);
}

void write_back(const at::Tensor& result, const at::Tensor& to) {
  if (!to.defined() || to.is_same(result)) return;
  if (!to.is_sparse()) return void(to.copy_(result));
  auto* const sparse = static_cast<at::SparseTensorImpl*>(to.unsafeGetTensorImpl());
  sparse->raw_resize_(result.sparse_dim(), result.dense_dim(), result.sizes());
  sparse->set_indices_and_values_unsafe(result._indices().to(to.device()), result._values().to(to.device()));
  sparse->set_coalesced(result.is_coalesced());
}

c10::IValue moved(const c10::IValue& value, c10::Device device) {
  if (value.isTensor()) return moved(value.toTensor(), device);
  if (value.isDevice()) return device;
  if (!value.isTensorList()) return value;
  std::vector<at::Tensor> all = value.toTensorVector();
  for (at::Tensor& tensor : all) tensor = moved(tensor, device);
  return all;
}

void write_back(const c10::IValue& result, const c10::IValue& to) {
  if (to.isTensor()) return write_back(result.toTensor(), to.toTensor());
  const std::vector<at::Tensor> results = result.toTensorVector(), all = to.toTensorVector();
  for (size_t i = 0; i < all.size(); ++i) write_back(results[i], all[i]);
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

at::Tensor copy_sparse(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  write_back(sparse_of(from._indices().clone(), from._values().clone(), from), to);
  return to;
}

// A sparse tensor is two dense ones, on any device.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  library.impl("_sparse_coo_tensor_with_dims_and_tensors", &at::native::new_with_dims_and_tensor_sparse_symint);
  library.impl("_indices", &at::native::_indices_sparse);
  library.impl("_values", &at::native::_values_sparse);
  library.impl("_nnz", &at::native::_nnz_sparse);
  library.impl("sparse_dim", &at::native::sparse_dim_sparse);
  library.impl("dense_dim", &at::native::dense_dim_sparse);
  library.impl("is_coalesced", &at::native::is_coalesced_sparse);
  library.impl("_copy_from", &copy_sparse);
  library.impl("_coalesced_", &at::native::_coalesced_sparse_);
}

}  // namespace

// Arguments may be lists of tensors, as those of collectives.
void sparse_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t begin = stack->size() - arguments.size();
  const std::vector<c10::IValue> given(stack->begin() + static_cast<std::ptrdiff_t>(begin), stack->end());
  for (size_t i = begin; i < stack->size(); ++i) (*stack)[i] = moved((*stack)[i], c10::kCPU);
  const std::vector<c10::IValue> brought(stack->begin() + static_cast<std::ptrdiff_t>(begin), stack->end());
  op.callBoxed(stack);
  for (size_t i = begin; i < stack->size(); ++i) {
    if ((*stack)[i].isCustomClass()) (*stack)[i].toCustomClass<c10d::Work>()->wait();
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(arguments[i])) write_back(brought[i], given[i]);
  }
  for (size_t r = 0; r < op.schema().returns().size(); ++r) {
    c10::IValue& value = (*stack)[begin + r];
    value = is_written(op.schema().returns()[r]) ? given[r] : moved(value, fake_device());
  }
}

}  // namespace gradtune::test
