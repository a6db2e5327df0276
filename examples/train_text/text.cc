// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_text/text.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

namespace {

std::string print_bible() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen("bible -f 'gen1:1-rev22:21' 2>/dev/null", "r"), pclose);
  std::string text;
  char buffer[1 << 16];
  for (size_t count = 1; pipe && count > 0;) {
    count = std::fread(buffer, 1, sizeof buffer, pipe.get());
    text.append(buffer, count);
  }
  if (text.empty()) {
    throw std::runtime_error(
        "the command \"bible\" prints no text; apt-get install bible-kjv, or name a file with --text");
  }
  return text;
}

}  // namespace

Text load_text(const std::string& file) {
  std::string text;
  if (file.empty()) {
    text = print_bible();
  } else {
    std::ifstream stream(file, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(stream), {});
    if (text.empty()) throw std::runtime_error("the text " + file + " can not be read, or is empty");
  }
  torch::Tensor bytes = torch::empty({static_cast<int64_t>(text.size())}, torch::kLong);
  auto* const values = bytes.data_ptr<int64_t>();
  for (size_t i = 0; i < text.size(); ++i)
    values[i] = std::min<int64_t>(static_cast<unsigned char>(text[i]), kSymbols - 1);
  const int64_t held_out = bytes.size(0) / 20;
  return {bytes.slice(0, 0, bytes.size(0) - held_out), bytes.slice(0, bytes.size(0) - held_out)};
}

TextBatches::TextBatches(const torch::Tensor& text, int64_t batch, int64_t length, int rank, int64_t seed)
    : text_(text),
      batch_(batch),
      length_(length),
      generator_(at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed * 1000 + rank))) {}

TextBatch TextBatches::next() {
  const int64_t last = text_.size(0) - length_ - 1;
  return piece(text_, torch::randint(last, {batch_}, generator_, torch::kLong), length_);
}

TextBatch piece(const torch::Tensor& text, const torch::Tensor& begins, int64_t length) {
  const torch::Tensor at = begins.unsqueeze(1) + torch::arange(length);
  return {text.index({at}), text.index({at + 1})};
}
