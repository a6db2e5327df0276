// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/sparse/sparse_payload.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "engine/compress/sparse/sparse_kernels.h"

namespace gradtune::compress {
namespace {

SparseHeader sparse_header_of(std::span<const std::byte> payload) {
  SparseHeader header;
  std::memcpy(&header, payload.data() + sizeof(PayloadHeader), sizeof header);
  return header;
}

template <typename T>
const T* at(std::span<const std::byte> payload, int64_t offset) {
  return reinterpret_cast<const T*>(payload.data() + offset);
}

}  // namespace

int64_t sparse_bytes_at(const SparseShape& shape, double share) {
  const auto count = static_cast<int64_t>(std::ceil(share * static_cast<double>(shape.units)));
  return choose_layout(shape, std::clamp<int64_t>(count, 0, shape.units), false).bytes;
}

int64_t sparse_used_bytes(std::span<const std::byte> payload) {
  return std::max(kSparseHeaderBytes, used_bytes(payload));
}

std::optional<std::string> defect_of_sparse(std::span<const std::byte> payload, const SparseShape& shape,
                                            HostQueue& queue) {
  const SparseHeader header = sparse_header_of(payload);
  if (header.width != static_cast<uint64_t>(shape.width)) {
    return fmt::format("elements of a unit is {}, not {}", header.width, shape.width);
  }
  if (header.form > SparseForm::bitmap)
    return fmt::format("form is {}, not 0 to 2", static_cast<uint32_t>(header.form));
  if (header.count > static_cast<uint64_t>(shape.units)) {
    return fmt::format("number of units is {}, more than the {} that there are", header.count, shape.units);
  }
  const auto count = int64_t{header.count};
  // The place of the index does not depend on the last unit.
  const SparseLayout guess = sparse_layout(header.form, shape, count, false);
  if (guess.values_at > static_cast<int64_t>(payload.size())) return "index is longer than the payload";
  bool has_last = false;
  if (header.form == SparseForm::list && count > 0) {
    const auto* const list = at<uint32_t>(payload, guess.index_at);
    const int64_t bad = find_first(
        queue, count, [&](int64_t i) { return list[i] >= shape.units || (i > 0 && list[i] <= list[i - 1]); });
    if (bad < count) return fmt::format("position {} is {}, too large or not ascending", bad, list[bad]);
    has_last = list[count - 1] == shape.units - 1;
  } else if (header.form == SparseForm::bitmap && shape.units > 0) {
    const auto* const starts = at<uint32_t>(payload, guess.starts_at);
    const auto* const bits = at<uint64_t>(payload, guess.index_at);
    const int64_t runs = shape.runs(), words_of_run = shape.run() / 64;
    std::atomic<bool> is_right = starts[0] == 0;
    for_ranges(queue, runs, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        uint64_t there = 0;
        const int64_t last = std::min((r + 1) * words_of_run, shape.words());
        for (int64_t w = r * words_of_run; w < last; ++w) there += static_cast<uint64_t>(std::popcount(bits[w]));
        const uint64_t next = r + 1 < runs ? starts[r + 1] : header.count;
        if (starts[r] + there != next) is_right.store(false, std::memory_order_relaxed);
      }
    });
    const uint64_t last_word = bits[shape.words() - 1];
    if (shape.units % 64 != 0 && last_word >> (shape.units % 64) != 0) return "bitmap is longer than the units";
    if (!is_right) return "number of bits is not what the header says";
    has_last = (last_word >> ((shape.units - 1) % 64) & 1) != 0;
  }
  const SparseLayout layout = sparse_layout(header.form, shape, count, has_last);
  if (layout.bytes != int64_t{header_of(payload).count} * kUsedUnit) {
    return fmt::format("used size is {} bytes, not the {} of its header", layout.bytes,
                       header_of(payload).count * kUsedUnit);
  }
  return {};
}

SparseView::SparseView(std::span<const std::byte> payload, const SparseShape& shape) : shape_(shape) {
  const SparseHeader header = sparse_header_of(payload);
  form_ = header.form;
  count_ = header.count;
  const SparseLayout layout = sparse_layout(form_, shape_, count_, false);
  if (form_ == SparseForm::list) list_ = at<uint32_t>(payload, layout.index_at);
  if (form_ == SparseForm::bitmap) {
    starts_ = at<uint32_t>(payload, layout.starts_at);
    bits_ = at<uint64_t>(payload, layout.index_at);
  }
  values_ = at<float>(payload, layout.values_at);
}

void SparseView::add_run(int64_t begin, int64_t end, float* sums) const {
  const int64_t width = shape_.width;
  const float* from = values_;
  // Adds consecutive units, which are contiguous in the payload.
  const auto add = [&](int64_t first, int64_t last) {
    const int64_t n = shape_.end_of(last - 1) - first * width;
    float* const to = sums + (first - begin) * width;
    if (n < 16) {  // a call would cost as much
      for (int64_t i = 0; i < n; ++i) to[i] += from[i];
    } else {
      add_values(from, static_cast<size_t>(n), to);
    }
    from += n;
  };
  switch (form_) {
    case SparseForm::dense: from += begin * width; return add(begin, end);
    case SparseForm::list: {
      const uint32_t *at = std::lower_bound(list_, list_ + count_, begin), *const behind = list_ + count_;
      from += (at - list_) * width;
      while (at < behind && *at < end) {
        const int64_t first = *at;
        int64_t last = first;
        while (at < behind && *at == last && last < end) ++at, ++last;
        add(first, last);
      }
      return;
    }
    case SparseForm::bitmap:
      from += int64_t{starts_[begin / shape_.run()]} * width;
      if (width > 1) return for_streaks(bits_, begin, end, add);
      for (int64_t first = begin; first < end;) {
        int64_t last = first;
        while (last < end && bits_[last / 64] == ~uint64_t{0}) last += 64;
        if (last > first) {
          add(first, last);
          first = last;
        } else {
          for_bits(bits_, first, first + 64, [&](int64_t unit) { sums[unit - begin] += *from++; });
          first += 64;
        }
      }
  }
}

void SparseView::seek(int64_t unit) {
  if (form_ == SparseForm::list) rank_ = std::lower_bound(list_, list_ + count_, unit) - list_;
  if (form_ == SparseForm::bitmap && unit < shape_.units) rank_ = starts_[unit / shape_.run()];
  find(unit);
}

void SparseView::find(int64_t from) {
  switch (form_) {
    case SparseForm::list: unit_ = rank_ < count_ ? int64_t{list_[rank_]} : shape_.units; return;
    case SparseForm::bitmap: {
      unit_ = shape_.units;
      if (from >= shape_.units) return;
      uint64_t word = bits_[from / 64] >> (from % 64) << (from % 64);
      int64_t at = from / 64;
      while (word == 0 && ++at < shape_.words()) word = bits_[at];
      if (word != 0) unit_ = at * 64 + std::countr_zero(word);
      return;
    }
    case SparseForm::dense:
      for (unit_ = from; unit_ < shape_.units; ++unit_) {
        uint32_t bits = 0;
        for (int64_t i = unit_ * shape_.width; i < shape_.end_of(unit_); ++i)
          bits |= std::bit_cast<uint32_t>(values_[i]);
        if (bits != 0) return;
      }
  }
}

}  // namespace gradtune::compress
