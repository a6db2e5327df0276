// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A text as a stream of bytes, and the order in which ranks read it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

struct Text {
  torch::Tensor train, validation;  // int64 [n], bytes below kSymbols; validation is the last twentieth of the text
};
constexpr int64_t kSymbols = 128;
constexpr int64_t kLength = 64;  // bytes of one piece, the input of a model

// Loads a file of ASCII; without a name, the output of Debian's command "bible" (package bible-kjv). Throws
// std::runtime_error that says what is missing and how to get it.
Text load_text(const std::string& file);

struct TextBatch {
  torch::Tensor inputs, targets;  // int64 [batch, length]; a target is the byte after its input
};

// Endless batches of one rank: pieces of the text that begin at random positions, which differ between ranks.
class TextBatches {
 public:
  TextBatches(const torch::Tensor& text, int64_t batch, int64_t length, int rank, int64_t seed);
  TextBatch next();

 private:
  const torch::Tensor text_;
  const int64_t batch_, length_;
  at::Generator generator_;
};

// Consecutive pieces of the text from the first byte on.
TextBatch piece(const torch::Tensor& text, const torch::Tensor& begins, int64_t length);
