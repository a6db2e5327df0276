// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/op_sizes.h"

#include <algorithm>
#include <array>

#include "engine/core/result.h"

namespace gradtune::policies {
namespace {

using core::Level;
using core::Step;
using Kind = Step::Kind;

// Tracks the data that the steps so far leave on a rank that holds data.
class Walk {
 public:
  Walk(const core::Option& option, const core::Extent& bucket, const core::Ranks& ranks, core::TraitsTable known,
       core::DType dtype)
      : option_(option),
        bucket_(bucket),
        numel_(bucket.numel),
        element_bytes_(core::bytes_per_element(is_staged(option, dtype) ? core::DType::f32 : dtype)),
        ranks_(ranks),
        known_(known) {
    const bool levels = core::uses_levels(option);
    const int shards = levels ? ranks.of(Level::intra) * ranks.of(Level::inter) : ranks.size;
    padded_ = core::padded_to_shards(numel_, shards);
    held_ = padded_;
  }

  OpSize operator()(size_t position) {
    const Step& step = option_.steps[position];
    const int64_t held_bytes = encoded_ ? parts_ * part_bytes_ : element_bytes_ * held();
    OpSize size = core::is_collective(step.kind) ? collective(step)
                  : step.kind == Kind::encode    ? encode(position)
                                                 : decode(step);
    size.held_bytes = held_bytes;
    return size;
  }

 private:
  int64_t held() const { return std::min(held_, numel_); }

  OpSize encode(size_t position) {
    const Step& step = option_.steps[position];
    const core::CompressorSpec& codec = option_.codecs[step.codec];
    parts_ = 1;
    bool to_sum = false;
    for (size_t i = position + 1; i < option_.steps.size() && core::is_collective(option_.steps[i].kind); ++i) {
      const core::StepTraits& ahead = core::traits_of(option_.steps[i].kind);
      if (ahead.has_input_parts) parts_ *= ranks_.of(option_.steps[i].level);
      to_sum = to_sum || ahead.adds_up;
    }
    codec_ = step.codec;
    const int64_t elements = there(held(), step);
    const int64_t part = std::min(held_ / parts_, numel_);
    const std::vector<core::Matrix> matrices = core::matrices_within(bucket_.matrices, 0, part);
    part_bytes_ = traits_of(step).payload_bytes(codec, {part, matrices}, step.round);
    use_ = usual_use(traits_of(step), codec, part);
    if (!to_sum) part_bytes_ = core::aligned_payload(part_bytes_);
    added_ = 1;
    encoded_ = true;
    return {.elements = elements, .bytes = parts_ * part_bytes_};
  }

  OpSize decode(const Step& step) {
    encoded_ = false;
    const bool is_last = step.round + 1 == traits_of(step).rounds;
    int64_t bytes = parts_ * part_bytes_;
    if (traits_of(step).takes_rows) bytes = static_cast<int64_t>(use_ * static_cast<double>(bytes));
    summed_ *= static_cast<int>(added_);
    return {.elements = is_last ? there(held(), step) : 0, .payloads = added_, .bytes = bytes};
  }

  // The share of a payload for `part` elements that is usually used.
  double usual_use(const core::CompressorTraits& traits, const core::CompressorSpec& codec, int64_t part) const {
    if (traits.sparse_bytes == nullptr) return traits.usual_use;
    const double share = bucket_.content.at(summed_, ranks_.size);
    return static_cast<double>(traits.sparse_bytes(codec, part, bucket_.content.row, share)) /
           static_cast<double>(std::max<int64_t>(part_bytes_, 1));
  }

  // The number of these elements that a compressor touches.
  int64_t there(int64_t elements, const Step& step) const {
    if (!traits_of(step).takes_rows) return elements;
    return static_cast<int64_t>(bucket_.content.at(summed_, ranks_.size) * static_cast<double>(elements));
  }

  const core::CompressorTraits& traits_of(const Step& step) const {
    const core::CompressorTraits* traits = core::traits_of(option_.codecs[step.codec], known_);
    core::check(traits != nullptr, "a program uses a compressor without traits");
    return *traits;
  }

  OpSize collective(const Step& step) {
    const core::StepTraits& kind = core::traits_of(step.kind);
    const int group = ranks_.of(step.level);
    const bool is_cut = is_split(Level::intra);  // otherwise a node's root has everything
    OpSize size{.bytes = encoded_ ? exchange(kind, step.level) : move_gradients(kind, step.level)};
    const int64_t of_one = core::link_bytes(step.kind, size.bytes, group);
    size.link_bytes = of_one;
    if (step.level == Level::inter && is_cut) size.link_bytes *= ranks_.of(Level::intra);
    if (step.level == Level::flat && kind.is_pairwise && ranks_.has_levels()) {
      size.link_bytes = size.bytes * ranks_.local_size * (ranks_.size - ranks_.local_size);
    }
    if (core::is_dimension(step.level) && ranks_.has_levels()) {
      size.link_bytes = std::max(of_one, size.bytes * messages_of_node(step.level));
    }
    if (of_one > 0) size.sharing = static_cast<double>(size.link_bytes) / static_cast<double>(of_one);
    if (!encoded_) return size;
    size.codec = codec_;
    size.use = use_;
    size.link_bytes = static_cast<int64_t>(use_ * static_cast<double>(size.link_bytes));
    return size;
  }

  // Along a dimension: messages between the first node's ranks and those of other nodes. Ranks are numbered node by
  // node.
  int messages_of_node(Level level) const {
    const core::Subgroup ranks = core::along(level, ranks_.size);
    int messages = 0;
    for (int rank = 0; rank < ranks_.local_size; ++rank) {
      for (int index = 0; index < ranks.size; ++index) {
        messages += ranks.rank_at(index, rank) >= ranks_.local_size ? 1 : 0;
      }
    }
    return messages;
  }

  bool& is_split(Level level) { return split_[static_cast<size_t>(level)]; }

  // Payloads: there are `parts_` of them, of which `added_` belong to the same elements. Returns the bytes that one
  // rank gives.
  int64_t exchange(const core::StepTraits& kind, Level level) {
    const int64_t bytes = parts_ * part_bytes_;
    const int group = ranks_.of(level);
    if (kind.has_input_parts) {  // each rank keeps its own part of all ranks' payloads
      held_ /= group;
      is_split(level) = true;
      added_ *= group;
      return bytes / group;
    }
    if (kind.has_output_parts) {
      parts_ *= group;
      if (is_split(level)) {  // shards that are concatenated
        is_split(level) = false;
        held_ *= group;
      } else {
        added_ *= group;
      }
    }
    return bytes;
  }

  int64_t move_gradients(const core::StepTraits& kind, Level level) {
    if (kind.is_in_place) return element_bytes_ * held();
    const int group = ranks_.of(level);
    if (kind.has_input_parts) held_ /= group;
    is_split(level) = kind.has_input_parts;
    const int64_t bytes = element_bytes_ * held_;
    if (kind.has_output_parts) held_ *= group;
    return bytes;
  }

  const core::Option& option_;
  const core::Extent& bucket_;
  const int64_t numel_;
  const int64_t element_bytes_;  // of the summed data
  const core::Ranks& ranks_;
  const core::TraitsTable known_;
  int64_t padded_ = 0;
  int64_t held_ = 0;                         // elements, including the padding of shards
  std::array<bool, core::kLevels> split_{};  // per level
  bool encoded_ = false;
  int64_t parts_ = 1, part_bytes_ = 0, added_ = 1;
  int summed_ = 1;  // number of ranks whose data is summed in the held elements
  int codec_ = -1;  // of the payloads
  double use_ = 1;
};

}  // namespace

bool is_staged(const core::Option& option, core::DType dtype) {
  return dtype != core::DType::f32 && (option.steps.size() > 1 || !core::is_collective(option.steps.front().kind));
}

std::vector<OpSize> op_sizes(const core::Option& option, const core::Extent& bucket, const core::Ranks& ranks,
                             core::TraitsTable known, core::DType dtype) {
  Walk walk(option, bucket, ranks, known, dtype);
  std::vector<OpSize> sizes;
  for (size_t i = 0; i < option.steps.size(); ++i) sizes.push_back(walk(i));
  return sizes;
}

int64_t payload_bytes(const std::vector<Step>& steps, const std::vector<OpSize>& sizes, const core::Ranks& ranks) {
  int64_t total = 0;
  bool encoded = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind == Kind::encode) {
      total += sizes[i].bytes;
      encoded = true;
    } else if (steps[i].kind == Kind::decode) {
      encoded = false;
    } else if (encoded && !core::traits_of(steps[i].kind).is_in_place) {
      total += sizes[i].bytes * ranks.of(steps[i].level);
    }
  }
  return total;
}

}  // namespace gradtune::policies
