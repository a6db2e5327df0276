// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_fashion_mnist/data.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>
#include <zlib.h>

#include <memory>
#include <stdexcept>
#include <vector>

namespace {

// The IDX format: a magic number with the count of dimensions, the extents (big endian), then bytes.
torch::Tensor read_idx(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) {
    throw std::runtime_error(
        "can not open " + path +
        "; the data come with Debian's package dataset-fashion-mnist, or name their folder by --data");
  }
  const auto read = [&](void* to, size_t bytes) {
    if (gzread(file.get(), to, static_cast<unsigned>(bytes)) != static_cast<int>(bytes))
      throw std::runtime_error(path + " ends too early");
  };
  uint8_t magic[4];
  read(magic, sizeof magic);
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] < 1 || magic[3] > 3) {
    throw std::runtime_error(path + " is not an IDX file of bytes");
  }
  std::vector<int64_t> shape;
  for (int d = 0; d < magic[3]; ++d) {
    uint8_t extent[4];
    read(extent, sizeof extent);
    shape.push_back(int64_t{extent[0]} << 24 | extent[1] << 16 | extent[2] << 8 | extent[3]);
    if (shape.back() < 1 || shape.back() > 1 << 20) throw std::runtime_error(path + " has an impossible extent");
  }
  torch::Tensor tensor = torch::empty(shape, torch::kByte);
  read(tensor.data_ptr(), tensor.nbytes());
  return tensor;
}

}  // namespace

Dataset load_fashion_mnist(const std::string& folder, const std::string& part) {
  return {read_idx(folder + "/" + part + "-images-idx3-ubyte.gz"),
          read_idx(folder + "/" + part + "-labels-idx1-ubyte.gz").to(torch::kLong)};
}

Batch make_batch(const Dataset& data, const torch::Tensor& indices) {
  constexpr double kMean = 0.2860, kDeviation = 0.3530;  // of the training set's pixels, scaled to 0..1
  torch::Tensor images = data.images.index_select(0, indices).to(torch::kFloat).div_(255).sub_(kMean).div_(kDeviation);
  return {images.unsqueeze(1), data.labels.index_select(0, indices)};
}

Batches::Batches(const Dataset& data, int64_t batch_size, int rank, int world_size, int64_t seed)
    : data_(data), batch_size_(batch_size), rank_(rank), world_size_(world_size), seed_(seed) {
  if (data.images.size(0) / world_size < batch_size)
    throw std::runtime_error("--batch is larger than a rank's share of the data");
  shuffle();
}

void Batches::shuffle() {
  ++epoch_;
  at_ = 0;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed_ + epoch_));
  const torch::Tensor all = torch::randperm(data_.images.size(0), generator, torch::kLong);
  indices_ = all.slice(0, rank_, torch::nullopt, world_size_);
}

void Batches::advance() {
  if (at_ + batch_size_ > indices_.size(0)) shuffle();
  at_ += batch_size_;
}

void Batches::skip(int64_t batches) {
  for (int64_t i = 0; i < batches; ++i) advance();
}

Batch Batches::next() {
  advance();
  return make_batch(data_, indices_.slice(0, at_ - batch_size_, at_));
}
