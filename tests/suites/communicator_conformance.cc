// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/suites/communicator_conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/core/float16.h"

namespace gradtune::suites {
namespace {

using comm::Collective;
using comm::WireType;
using core::Error;
using Kind = Collective::Kind;
using Reduction = Collective::Reduction;

constexpr int64_t kLongTimeoutMs = 60'000;
constexpr int64_t kShortTimeoutMs = 100;
constexpr size_t kGuardBytes = 64;
constexpr uint8_t kGuard = 0xa5;

// Records completions, and that each happens once.
class Sink final : public comm::CompletionSink {
 public:
  explicit Sink(const Players& players) : players_(players) {}

  void complete(uint64_t token, core::Status status, core::Fence done) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(told_.emplace(token, Told{std::move(status), done}).second) << "token " << token << " completed twice";
    changed_.notify_all();
  }

  core::Status wait(uint64_t token, const std::function<void()>& progress) {
    std::unique_lock lock(mutex_);
    while (!told_.contains(token)) {
      if (!progress) {
        changed_.wait(lock);
        continue;
      }
      lock.unlock();
      progress();
      lock.lock();
    }
    const auto [status, done] = told_.at(token);
    lock.unlock();
    if (!status) return status;
    if (core::Status passed = done.wait(kLongTimeoutMs); !passed) return passed;
    for (const comm::Communicator* rank : players_.ranks) {
      if (core::Status well = rank->health(); !well) return well;
    }
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Told {
    core::Status status;
    core::Fence done;
  };
  std::map<uint64_t, Told> told_;
  const Players& players_;
};

// --- Values: small whole numbers, whose sums over a few ranks are exact in every type, repeating with a prime period -

constexpr int64_t kPeriod = 41;
int value_at(int rank, int64_t i) { return static_cast<int>((i * 7 + rank * 13) % kPeriod); }

void write(std::byte* data, WireType type, int64_t i, int value) {
  const auto put = [&](auto typed) {
    std::memcpy(data + i * static_cast<int64_t>(sizeof typed), &typed, sizeof typed);
  };
  switch (type) {
    case WireType::u8: return put(static_cast<uint8_t>(value));
    case WireType::f32: return put(static_cast<float>(value));
    case WireType::f64: return put(static_cast<double>(value));
    case WireType::bf16: return put(core::narrow_bf16(static_cast<float>(value)));
    case WireType::f16: return put(core::narrow_f16(static_cast<float>(value)));
  }
}

struct Case {
  Kind kind;
  Reduction reduction = Reduction::sum;
  bool in_place = false;
  bool last_is_root = false;
  WireType type = WireType::u8;
  int64_t count = 0;
  std::optional<core::Subgroup> among = {};

  std::string name() const {
    return std::string(core::to_string(kind)) +
           (among ? " among " + std::to_string(among->size) + ", every " + std::to_string(among->stride) : "") +
           (in_place ? " in place" : "") + (last_is_root ? " at the last rank" : "") +
           (reduction == Reduction::max ? " (max)" : "") + " of " + std::to_string(count) + " elements of type " +
           std::to_string(static_cast<int>(type));
  }
};

constexpr Case kKinds[] = {
    {.kind = Kind::all_reduce},
    {.kind = Kind::all_reduce, .reduction = Reduction::max},
    {.kind = Kind::reduce_scatter},
    {.kind = Kind::reduce_scatter, .in_place = true},
    {.kind = Kind::reduce_scatter, .reduction = Reduction::max},
    {.kind = Kind::all_gather},
    {.kind = Kind::all_gather, .in_place = true},
    {.kind = Kind::all_to_all},
    {.kind = Kind::reduce},
    {.kind = Kind::reduce, .reduction = Reduction::max, .last_is_root = true},
    {.kind = Kind::broadcast},
    {.kind = Kind::broadcast, .last_is_root = true},
    {.kind = Kind::gather},
    {.kind = Kind::gather, .in_place = true, .last_is_root = true},
};

bool has_parts_in(Kind kind) { return core::traits_of(kind).has_input_parts; }
bool has_parts_out(const Case& what) {
  return core::traits_of(what.kind).has_output_parts || (what.kind == Kind::reduce_scatter && what.in_place);
}

// Sizes that divide a group of that size.
std::vector<std::optional<core::Subgroup>> subgroups_of(int size) {
  std::vector<std::optional<core::Subgroup>> all{std::nullopt};
  const auto dimensions = static_cast<int>(core::mesh_of(size).size());
  for (int d = 0; d < dimensions; ++d) all.emplace_back(core::along(core::dimension(d), size));
  return all;
}

std::vector<Case> cases_of(WireType type, int64_t count, int size) {
  std::vector<Case> cases(std::begin(kKinds), std::end(kKinds));
  for (const core::StepTraits& traits : core::step_table()) {
    EXPECT_EQ(traits.is_collective, std::ranges::find(cases, traits.kind, &Case::kind) != cases.end()) << traits.name;
  }
  for (const auto& among : subgroups_of(size)) {
    if (!among) continue;
    cases.push_back({.kind = Kind::all_gather, .among = among});
    cases.push_back({.kind = Kind::all_gather, .in_place = true, .among = among});
  }
  for (Case& what : cases) {
    what.type = type;
    what.count = count;
  }
  return cases;
}

// The values of rank `me` at element i of part p before and after. Parts have `count` elements, and there is one for
// each member of the collective.
int before(const Case& what, int me, int part, int64_t i) { return value_at(me, part * what.count + i); }

int reduced(const Case& what, int size, int part, int64_t i) {
  int sum = 0, largest = 0;
  for (int rank = 0; rank < size; ++rank) {
    sum += before(what, rank, part, i);
    largest = std::max(largest, before(what, rank, part, i));
  }
  return what.reduction == Reduction::sum ? sum : largest;
}

int after(const Case& what, int size, int me, int part, int64_t i) {
  if (what.among) return before(what, what.among->rank_at(part, me), what.in_place ? part : 0, i);
  switch (what.kind) {
    case Kind::all_reduce:
    case Kind::reduce: return reduced(what, size, 0, i);
    case Kind::reduce_scatter: return reduced(what, size, me, i);
    case Kind::all_gather:
    case Kind::gather: return before(what, part, what.in_place ? part : 0, i);
    case Kind::all_to_all: return before(what, part, me, i);
    case Kind::broadcast: return before(what, what.last_is_root ? size - 1 : 0, 0, i);
    case Kind::encode:
    case Kind::decode: break;
  }
  return 0;
}

// A buffer with guards behind it, filled by fill(part, i), which repeats with the period in i.
class Buffer {
 public:
  template <typename Fill>
  Buffer(WireType type, int parts, int64_t count, Fill fill)
      : bytes_(static_cast<size_t>(parts * count * comm::bytes_per_element(type)) + kGuardBytes, kGuard) {
    const int64_t width = comm::bytes_per_element(type);
    for (int part = 0; part < parts; ++part) {
      std::byte* begin = data() + part * count * width;
      int64_t done = std::min(count, kPeriod);
      for (int64_t i = 0; i < done; ++i) write(begin, type, i, fill(part, i));
      for (int64_t length; done < count; done += length) {
        length = std::min(done, count - done);
        std::memcpy(begin + done * width, begin, static_cast<size_t>(length * width));
      }
    }
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(bytes_.data()); }

  void take_part(Buffer& other, int part, int64_t part_bytes) {
    std::memcpy(data() + part * part_bytes, other.data() + part * part_bytes, static_cast<size_t>(part_bytes));
  }
  bool operator==(const Buffer&) const = default;

 private:
  std::vector<uint8_t> bytes_;
};

// One rank's part in one case.
class Part {
 public:
  Part(const Case& what, comm::Communicator& rank)
      : what_(what),
        rank_(rank),
        ranks_(what.among.value_or(core::Subgroup{rank.size(), 1})),
        parts_in_(has_parts_in(what.kind) ? ranks_.size : 1),
        parts_out_(has_parts_out(what) ? ranks_.size : 1),
        in_(what.type, parts_in_, what.count, [&](int part, int64_t i) { return before(what_, me(), part, i); }),
        out_(what.type, parts_out_, what.count, [&](int part, int64_t i) { return initial(part, i); }) {
    scratch_.resize(static_cast<size_t>(
        rank.scratch_bytes({.kind = what.kind, .type = what.type, .count = what.count, .among = what.among})));
  }

  void start(Sink& sink, uint64_t token) {
    std::byte* own = out_.data() + (what_.in_place ? own_part() * part_bytes() : 0);
    const bool scatters = what_.kind == Kind::reduce_scatter;
    rank_.start({.kind = what_.kind,
                 .reduction = what_.reduction,
                 .type = what_.type,
                 .in = !what_.in_place ? in_.data()
                       : scatters      ? out_.data()
                                       : own,
                 .out = scatters ? own : out_.data(),
                 .count = what_.count,
                 .among = what_.among,
                 .root = root(),
                 .timeout_ms = kLongTimeoutMs,
                 .scratch = scratch_.data()},
                sink, token);
  }

  void check() {
    const Buffer in(what_.type, parts_in_, what_.count,
                    [&](int part, int64_t i) { return before(what_, me(), part, i); });
    Buffer out(what_.type, parts_out_, what_.count, [&](int part, int64_t i) {
      return is_left_alone() ? initial(part, i) : after(what_, rank_.size(), me(), part, i);
    });
    for (int part = 0; part < parts_out_; ++part) {
      if (may_hold_anything(part)) out.take_part(out_, part, part_bytes());
    }
    EXPECT_TRUE(in_ == in) << "rank " << me() << ": the input of " << what_.name() << " was written to";
    EXPECT_TRUE(out_ == out) << "rank " << me() << ": wrong result of " << what_.name();
  }

 private:
  int me() const { return rank_.rank(); }
  int own_part() const { return ranks_.index_of(me()); }
  int root() const { return what_.last_is_root ? rank_.size() - 1 : 0; }
  int64_t part_bytes() const { return what_.count * comm::bytes_per_element(what_.type); }
  bool is_left_alone() const { return what_.kind == Kind::gather && me() != root(); }
  bool may_hold_anything(int part) const {
    return (what_.kind == Kind::reduce && me() != root()) ||
           (what_.kind == Kind::reduce_scatter && what_.in_place && part != me());
  }
  // If a collective reads from `out`, this is its input; otherwise a value that must be overwritten.
  int initial(int part, int64_t i) const {
    const bool reads_out = what_.kind == Kind::all_reduce || what_.kind == Kind::reduce ||
                           what_.kind == Kind::broadcast || (what_.kind == Kind::reduce_scatter && what_.in_place);
    return reads_out || (what_.in_place && part == own_part()) ? before(what_, me(), part, i) : 77;
  }

  const Case what_;
  comm::Communicator& rank_;
  const core::Subgroup ranks_;
  const int parts_in_, parts_out_;
  Buffer in_, out_;
  std::vector<std::byte> scratch_;
};

// Starts all the cases on all the players, then waits for all of them.
void run_together(const std::vector<Case>& cases, const Players& players) {
  std::vector<std::unique_ptr<Part>> parts;
  Sink sink(players);
  for (comm::Communicator* rank : players.ranks) {
    for (const Case& what : cases) {
      parts.push_back(std::make_unique<Part>(what, *rank));
      parts.back()->start(sink, parts.size() - 1);
    }
  }
  for (uint64_t token = 0; token < parts.size(); ++token) {
    const core::Status status = sink.wait(token, players.progress);
    EXPECT_TRUE(status.ok()) << status.error().message;
    if (status.ok()) parts[token]->check();
  }
}

// --- Payloads that need not be full ----------------------------------------------------------------------------------

// The length stated in a payload of these tests: its first four bytes, of any value.
int64_t stated_length(std::span<const std::byte> payload) {
  uint32_t stated = 0;
  std::memcpy(&stated, payload.data(), sizeof stated);
  return std::clamp<int64_t>(stated, sizeof stated, static_cast<int64_t>(payload.size()));
}

// Payload `number` from rank `from` to rank `to`: from hardly used to full.
std::vector<std::byte> short_payload(int from, int to, int number, int64_t bytes) {
  const int64_t parts = 5, used = 4 + (bytes - 4) * ((from * 3 + to + number) % (parts + 1)) / parts;
  std::vector<std::byte> payload(static_cast<size_t>(bytes));
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(value_at(from + number, i + to));
  const auto stated = static_cast<uint32_t>(used);
  std::memcpy(payload.data(), &stated, sizeof stated);
  return payload;
}

// `number` payloads from each rank to each other one.
class ShortPayloads {
 public:
  ShortPayloads(const Case& what, int number, int64_t bytes, comm::Communicator& rank)
      : kind_(what.kind),
        in_place_(what.in_place),
        among_(what.among),
        ranks_(among_.value_or(core::Subgroup{rank.size(), 1})),
        number_(number),
        bytes_(bytes),
        rank_(rank) {
    const auto part = static_cast<size_t>(number * bytes);
    out_.assign(part * static_cast<size_t>(ranks_.size), std::byte{77});
    for (int to = 0; to < (has_parts_in(kind_) ? ranks_.size : 1); ++to) {
      for (int n = 0; n < number; ++n) {
        const std::vector<std::byte> payload = short_payload(rank.rank(), to, n, bytes);
        in_.insert(in_.end(), payload.begin(), payload.end());
      }
    }
    if (in_place_) std::copy(in_.begin(), in_.end(), own());
    scratch_.resize(static_cast<size_t>(rank.scratch_bytes({.kind = kind_, .count = number * bytes, .among = among_})));
  }

  void start(Sink& sink, uint64_t token) {
    rank_.start({.kind = kind_,
                 .in = in_place_ ? own() : in_.data(),
                 .out = out_.data(),
                 .count = number_ * bytes_,
                 .payload_bytes = bytes_,
                 .used_bytes = stated_length,
                 .among = among_,
                 .timeout_ms = kLongTimeoutMs,
                 .scratch = scratch_.data()},
                sink, token);
  }

  void check() const {
    if (kind_ == Kind::gather && rank_.rank() != 0) return;
    for (int part = 0; part < ranks_.size; ++part) {
      const int from = ranks_.rank_at(part, rank_.rank());
      for (int n = 0; n < number_; ++n) {
        const std::vector<std::byte> sent = short_payload(from, has_parts_in(kind_) ? rank_.rank() : 0, n, bytes_);
        const std::byte* const came = out_.data() + (part * number_ + n) * bytes_;
        EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + stated_length(sent), came))
            << "rank " << rank_.rank() << ", payload " << n << " from rank " << from << " of "
            << core::to_string(kind_);
      }
    }
  }

 private:
  std::byte* own() { return out_.data() + ranks_.index_of(rank_.rank()) * number_ * bytes_; }

  const Kind kind_;
  const bool in_place_;
  const std::optional<core::Subgroup> among_;
  const core::Subgroup ranks_;
  const int number_;
  const int64_t bytes_;
  comm::Communicator& rank_;
  std::vector<std::byte> in_, out_, scratch_;
};

void run_short_payloads(const Players& players) {
  std::vector<std::unique_ptr<ShortPayloads>> all;
  Sink sink(players);
  for (comm::Communicator* rank : players.ranks) {
    for (const int64_t bytes : {16, 4096, 400'000}) {
      for (const int number : {1, 3}) {
        for (const Case& what : cases_of(WireType::u8, 0, rank->size())) {
          if (core::traits_of(what.kind).adds_up || core::traits_of(what.kind).is_in_place) continue;
          all.push_back(std::make_unique<ShortPayloads>(what, number, bytes, *rank));
          all.back()->start(sink, all.size() - 1);
        }
      }
    }
  }
  for (uint64_t token = 0; token < all.size(); ++token) {
    const core::Status status = sink.wait(token, players.progress);
    EXPECT_TRUE(status.ok()) << status.error().message;
    if (status.ok()) all[token]->check();
  }
}

// --- Failures --------------------------------------------------------------------------------------------------------

// An all-reduce of one float, for tests of the outcome only.
void start_any(comm::Communicator& rank, Sink& sink, uint64_t token, float& value, int64_t timeout_ms) {
  rank.start({.kind = Kind::all_reduce,
              .type = WireType::f32,
              .out = reinterpret_cast<std::byte*>(&value),
              .count = 1,
              .timeout_ms = timeout_ms},
             sink, token);
}

void expect_failure(const core::Status& status, std::initializer_list<Error::Code> allowed) {
  ASSERT_FALSE(status.ok()) << "a collective succeeded that must not";
  EXPECT_NE(std::find(allowed.begin(), allowed.end(), status.error().code), allowed.end())
      << core::to_string(status.error().code) << ": " << status.error().message;
  EXPECT_FALSE(status.error().message.empty());
}

bool is_last(const comm::Communicator& rank) { return rank.rank() == rank.size() - 1; }

// Two collectives on each of the players but the last rank, which the last rank never joins.
class Stuck {
 public:
  Stuck(const Players& players, int64_t timeout_ms) : players_(players), values_(players.ranks.size()) {
    for (size_t p = 0; p < players.ranks.size(); ++p) {
      if (is_last(*players.ranks[p])) continue;
      start_any(*players.ranks[p], sink_, 10 * p, values_[p][0], timeout_ms);
      start_any(*players.ranks[p], sink_, 10 * p + 1, values_[p][1], kLongTimeoutMs);
    }
  }

  void expect_end(std::initializer_list<Error::Code> allowed) {
    for (size_t p = 0; p < players_.ranks.size(); ++p) {
      if (is_last(*players_.ranks[p])) continue;
      expect_failure(sink_.wait(10 * p, players_.progress), allowed);
      expect_failure(sink_.wait(10 * p + 1, players_.progress), allowed);
    }
  }

  void expect_dead(bool last_too) {
    for (size_t p = 0; p < players_.ranks.size(); ++p) {
      if (is_last(*players_.ranks[p]) && !last_too) continue;
      start_any(*players_.ranks[p], sink_, 10 * p + 2, values_[p][2], kLongTimeoutMs);
      expect_failure(sink_.wait(10 * p + 2, players_.progress), {Error::Code::lost, Error::Code::timeout});
    }
  }

 private:
  const Players& players_;
  std::vector<std::array<float, 3>> values_;
  Sink sink_{players_};
};

}  // namespace

void run_communicator_conformance(const Players& players) {
  const int size = players.ranks.front()->size();
  ASSERT_LE(size * (kPeriod - 1), 255) << "sums must fit into a byte";
  for (const int64_t count : {0, 1, 7, 65'537}) {
    for (const WireType type : {WireType::u8, WireType::f32, WireType::f64, WireType::bf16, WireType::f16}) {
      run_together(cases_of(type, count, size), players);
    }
  }
  for (Case what : cases_of(WireType::f32, 1 << 20, size)) {
    if (has_parts_in(what.kind) || has_parts_out(what)) what.count /= size;  // share of the whole
    run_together({what}, players);
  }
  run_short_payloads(players);
}

void run_communicator_deadline(const Players& players) {
  Stuck stuck(players, kShortTimeoutMs);
  stuck.expect_end({Error::Code::timeout, Error::Code::lost});
  stuck.expect_dead(false);
}

void run_communicator_abort(const Players& players) {
  Stuck stuck(players, kLongTimeoutMs);
  for (comm::Communicator* rank : players.ranks) rank->abort();
  stuck.expect_end({Error::Code::lost});
  stuck.expect_dead(true);
}

void run_communicator_misuse(const Players& players) {
  Sink sink(players);
  std::vector<std::array<float, 2>> values(players.ranks.size());
  for (size_t p = 0; p < players.ranks.size(); ++p) {
    comm::Communicator& rank = *players.ranks[p];
    Collective call{
        .kind = Kind::all_reduce, .type = WireType::f32, .out = reinterpret_cast<std::byte*>(values[p].data())};
    for (const int64_t count : {-1, 1}) {
      Collective illegal = call;
      illegal.count = count;
      if (count > 0) illegal.out = nullptr;
      EXPECT_THROW(rank.start(illegal, sink, 1000), core::ProgramError);
    }
    Collective illegal = call;
    illegal.root = rank.size();
    EXPECT_THROW(rank.start(illegal, sink, 1000), core::ProgramError);
    call.count = is_last(rank) ? 2 : 1;
    rank.start(call, sink, p);
  }
  for (size_t p = 0; p < players.ranks.size(); ++p) {
    expect_failure(sink.wait(p, players.progress), {Error::Code::mismatch});
  }
}

}  // namespace gradtune::suites
