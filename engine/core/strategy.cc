// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/strategy.h"

#include <algorithm>

#include "engine/core/arenas.h"
#include "engine/core/hash.h"

namespace gradtune::core {
namespace {

Error mismatch(std::string message) { return {Error::Code::mismatch, std::move(message)}; }

std::string name_bucket(size_t bucket) { return "bucket " + std::to_string(bucket); }

// Walks all slices and checks that they cover the tensors of each arena from first to last without a gap.
Status validate_cover(const Strategy& strategy, const GradientTable& table) {
  struct Next {
    size_t tensor = 0;
    int64_t offset = 0;
  };
  const ArenaLayout layout = lay_arenas(table);
  std::vector<Next> next(layout.arenas.size());
  const auto skip_done = [&](int32_t arena) {
    Next& at = next[static_cast<size_t>(arena)];
    while (at.tensor < table.tensors.size() &&
           (layout.tensors[at.tensor].arena != arena || at.offset == table.tensors[at.tensor].numel)) {
      at = {at.tensor + 1, 0};
    }
  };
  for (size_t arena = 0; arena < next.size(); ++arena) skip_done(static_cast<int32_t>(arena));
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const Bucket& bucket = strategy.buckets[b];
    if (bucket.slices.empty()) return mismatch(name_bucket(b) + " has no slices");
    int32_t arena = 0;
    for (size_t s = 0; s < bucket.slices.size(); ++s) {
      const Slice& slice = bucket.slices[s];
      if (slice.tensor < 0 || static_cast<size_t>(slice.tensor) >= table.tensors.size()) {
        return mismatch(name_bucket(b) + " names tensor " + std::to_string(slice.tensor) + " of " +
                        std::to_string(table.tensors.size()));
      }
      const TensorInfo& tensor = table.tensors[static_cast<size_t>(slice.tensor)];
      const int32_t own = layout.tensors[static_cast<size_t>(slice.tensor)].arena;
      if (s == 0) arena = own;
      if (own != arena) {
        const bool is_dtype = tensor.dtype != layout.arenas[static_cast<size_t>(arena)].dtype;
        return mismatch(name_bucket(b) + " mixes " + (is_dtype ? "dtypes" : "memory of several spaces") + " at " +
                        tensor.name);
      }
      Next& at = next[static_cast<size_t>(arena)];
      if (static_cast<size_t>(slice.tensor) != at.tensor || slice.offset != at.offset || slice.length <= 0 ||
          slice.length > tensor.numel - slice.offset) {
        return mismatch(name_bucket(b) + ": slice [" + std::to_string(slice.offset) + ", +" +
                        std::to_string(slice.length) + ") of " + tensor.name +
                        " does not follow the slice before it, or leaves the tensor of " +
                        std::to_string(tensor.numel) + " elements");
      }
      at.offset += slice.length;
      skip_done(arena);
    }
  }
  for (const Next& at : next) {
    if (at.tensor < table.tensors.size()) {
      return mismatch("no bucket holds element " + std::to_string(at.offset) + " of " + table.tensors[at.tensor].name);
    }
  }
  return {};
}

Status validate_order(const Strategy& strategy) {
  std::vector<int32_t> last(strategy.buckets.size(), -1);
  size_t collectives = 0;
  for (const Bucket& bucket : strategy.buckets) collectives += static_cast<size_t>(collectives_of(bucket.option));
  for (const Issue& issue : strategy.order) {
    if (issue.bucket < 0 || static_cast<size_t>(issue.bucket) >= strategy.buckets.size()) {
      return mismatch("the order names bucket " + std::to_string(issue.bucket) + " of " +
                      std::to_string(strategy.buckets.size()));
    }
    const std::vector<Step>& steps = strategy.buckets[static_cast<size_t>(issue.bucket)].option.steps;
    int32_t& at = last[static_cast<size_t>(issue.bucket)];
    if (issue.step <= at || static_cast<size_t>(issue.step) >= steps.size() ||
        !is_collective(steps[static_cast<size_t>(issue.step)].kind)) {
      return mismatch("the order issues step " + std::to_string(issue.step) + " of bucket " +
                      std::to_string(issue.bucket) + ", which is not its next collective");
    }
    at = issue.step;
  }
  if (collectives != strategy.order.size()) {
    return mismatch("the order has " + std::to_string(strategy.order.size()) + " of " + std::to_string(collectives) +
                    " collectives");
  }
  return {};
}

}  // namespace

std::string_view to_string(Due due) { return due == Due::backward ? "backward" : "forward"; }

Result<Due> parse_due(std::string_view text) {
  for (const Due due : {Due::backward, Due::forward}) {
    if (text == to_string(due)) return due;
  }
  return Error{Error::Code::invalid, "\"" + std::string(text) + "\" is unknown; known are backward and forward"};
}

DType dtype_of(const Bucket& bucket, const GradientTable& table) {
  return table.tensors[static_cast<size_t>(bucket.slices.front().tensor)].dtype;
}

bool takes(const Option& option, DType dtype) { return dtype != DType::f64 || option == plain_all_reduce(); }

int64_t numel(const Bucket& bucket) {
  int64_t sum = 0;
  for (const Slice& slice : bucket.slices) sum += slice.length;
  return sum;
}

std::vector<Matrix> matrices_of(const Bucket& bucket, const GradientTable& table) {
  std::vector<Matrix> matrices;
  int64_t begin = 0;  // of the slice, in the bucket
  for (const Slice& slice : bucket.slices) {
    const TensorInfo& tensor = table.tensors[static_cast<size_t>(slice.tensor)];
    if (tensor.shape.size() > 1 && tensor.numel > 0) {
      const Matrix whole{0, tensor.memory_rows(), tensor.numel / tensor.memory_rows()};
      for (Matrix matrix : matrices_within({&whole, 1}, slice.offset, slice.length)) {
        matrix.begin += begin;
        matrices.push_back(matrix);
      }
    }
    begin += slice.length;
  }
  return matrices;
}

Content content_of(const Bucket& bucket, const GradientTable& table) {
  if (bucket.slices.size() != 1) return {};
  const Slice& slice = bucket.slices.front();
  const TensorInfo& tensor = table.tensors[static_cast<size_t>(slice.tensor)];
  return slice.length == tensor.numel ? tensor.content : Content();
}

uint64_t hash(const Strategy& strategy) {
  Hasher hasher;
  hasher.add(strategy.buckets.size());
  for (const Bucket& bucket : strategy.buckets) {
    hasher.add(bucket.slices.size());
    for (const Slice& slice : bucket.slices) {
      hasher.add(static_cast<uint64_t>(slice.tensor));
      hasher.add(static_cast<uint64_t>(slice.offset));
      hasher.add(static_cast<uint64_t>(slice.length));
    }
    hasher.add(to_string(bucket.option));
    if (bucket.due != Due::backward) hasher.add(to_string(bucket.due));
  }
  for (const Issue& issue : strategy.order) {
    hasher.add(static_cast<uint64_t>(issue.bucket));
    hasher.add(static_cast<uint64_t>(issue.step));
  }
  hasher.add(static_cast<uint64_t>(strategy.in_flight));
  return hasher.value();
}

Fidelity needed_fidelity(const Option& option, TraitsTable known) {
  Fidelity fidelity = Fidelity::exact;
  for (const CompressorSpec& codec : option.codecs) {
    const CompressorTraits* traits = traits_of(codec, known);
    check(traits != nullptr, "an option uses a compressor without traits");
    fidelity = std::max(fidelity, traits->fidelity);
  }
  return fidelity;
}

Fidelity needed_fidelity(const Strategy& strategy, TraitsTable known) {
  Fidelity fidelity = Fidelity::exact;
  for (const Bucket& bucket : strategy.buckets) fidelity = std::max(fidelity, needed_fidelity(bucket.option, known));
  return fidelity;
}

Status validate(const Strategy& strategy, const GradientTable& table) {
  if (strategy.in_flight < 1)
    return mismatch("in_flight is " + std::to_string(strategy.in_flight) + ", at least 1 is needed");
  if (Status cover = validate_cover(strategy, table); !cover) return cover;
  return validate_order(strategy);
}

std::vector<Issue> staggered_order(const std::vector<Bucket>& buckets, int lag) {
  struct Timed {
    int slot;  // a bucket's k-th collective goes out with the first one of the bucket k * lag places later
    int depth;
    Issue issue;
  };
  std::vector<Timed> all;
  for (size_t b = 0; b < buckets.size(); ++b) {
    int depth = 0;
    const std::vector<Step>& steps = buckets[b].option.steps;
    for (size_t s = 0; s < steps.size(); ++s) {
      if (!is_collective(steps[s].kind)) continue;
      all.push_back({static_cast<int>(b) + depth * lag, depth, {static_cast<int32_t>(b), static_cast<int32_t>(s)}});
      ++depth;
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Timed& a, const Timed& b) {
    return a.slot != b.slot ? a.slot < b.slot : a.depth < b.depth;
  });
  std::vector<Issue> order;
  for (const Timed& timed : all) order.push_back(timed.issue);
  return order;
}

void set_default_flow(Strategy& strategy) {
  strategy.in_flight = 1;
  for (const Bucket& bucket : strategy.buckets) {
    strategy.in_flight = std::max(strategy.in_flight, 2 * collectives_of(bucket.option));
  }
  strategy.order = staggered_order(strategy.buckets);
}

std::vector<std::vector<Slice>> cut(const GradientTable& table, int64_t first_bytes, int64_t bytes, bool split) {
  std::vector<std::vector<Slice>> buckets;
  struct Open {
    std::vector<Slice> slices;
    int64_t bytes = 0;
  };
  const ArenaLayout layout = lay_arenas(table);
  std::vector<Open> open(layout.arenas.size());  // one growing bucket per arena
  const auto limit = [&] { return buckets.empty() ? first_bytes : bytes; };
  const auto close = [&](Open& bucket) {
    if (!bucket.slices.empty()) buckets.push_back(std::move(bucket.slices));
    bucket = {};
  };
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    const TensorInfo& tensor = table.tensors[t];
    const int64_t width = bytes_per_element(tensor.dtype);
    Open& bucket = open[static_cast<size_t>(layout.tensors[t].arena)];
    for (int64_t offset = 0; offset < tensor.numel;) {
      const int64_t room = (limit() - bucket.bytes) / width;
      int64_t length = tensor.numel - offset;
      if (split) length = std::min(length, std::max<int64_t>(room, 1));
      bucket.slices.push_back({static_cast<int32_t>(t), offset, length});
      bucket.bytes += length * width;
      offset += length;
      if (bucket.bytes + width > limit()) close(bucket);
    }
  }
  for (Open& bucket : open) close(bucket);
  return buckets;
}

Strategy uniform(std::vector<std::vector<Slice>> buckets, const Option& option, int in_flight) {
  Strategy strategy{.buckets = {}, .order = {}, .in_flight = in_flight};
  for (std::vector<Slice>& slices : buckets) strategy.buckets.push_back({std::move(slices), option});
  strategy.order = staggered_order(strategy.buckets);
  return strategy;
}

std::string describe(const Strategy& strategy, const GradientTable& table) {
  std::string text = std::to_string(strategy.buckets.size()) + " buckets, " + std::to_string(strategy.in_flight) +
                     " collectives in flight\n";
  for (size_t first = 0; first < strategy.buckets.size();) {
    const Option& option = strategy.buckets[first].option;
    const Due due = strategy.buckets[first].due;
    size_t last = first;
    int64_t elements = 0;
    while (last < strategy.buckets.size() && strategy.buckets[last].option == option &&
           strategy.buckets[last].due == due) {
      elements += numel(strategy.buckets[last++]);
    }
    const std::vector<Slice>& begin = strategy.buckets[first].slices;
    const std::vector<Slice>& end = strategy.buckets[last - 1].slices;
    text += "  " + std::to_string(first) + (last - first > 1 ? "-" + std::to_string(last - 1) : "") + ": " +
            table.tensors[static_cast<size_t>(begin.front().tensor)].name + " .. " +
            table.tensors[static_cast<size_t>(end.back().tensor)].name + ", " + std::to_string(elements) +
            " elements: " + to_string(option) + (due == Due::forward ? ", due at the next forward pass" : "") + "\n";
    first = last;
  }
  return text;
}

}  // namespace gradtune::core
