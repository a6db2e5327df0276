// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/peers.h"

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <sstream>
#include <utility>

#include "engine/core/hash.h"
#include "hooks/c10d/allowed_cores.h"
#include "hooks/c10d/communicator.h"
#include "hooks/c10d/comparison.h"
#include "hooks/c10d/errors.h"
#include "hooks/c10d/launcher.h"
#include "hooks/c10d/link_probe.h"
#include "hooks/c10d/nccl_group.h"
#include "hooks/c10d/process_end.h"
#include "hooks/c10d/torch_versions.h"
#include "hooks/c10d/with_deadline.h"
#include "tuner/agreement.h"
#include "tuner/files/file_io.h"

namespace gradtune {
namespace {

using comm::Collective;

c10::intrusive_ptr<c10d::Store> own_store(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int64_t timeout_ms) {
  const auto store = versions::store_of(*group);
  if (!store) {
    throw core::Exception({core::Error::Code::invalid,
                           "gradtune: the process group has no store, by which ranks find each other; make it with "
                           "init_process_group(), or with a constructor of c10d::ProcessGroup that takes a store"});
  }
  // The n-th wrap of this rank matches the n-th wrap of every rank, so each wrap has its own keys.
  const auto wraps = with_deadline(std::chrono::milliseconds(timeout_ms), [store, rank = group->getRank()] {
    return store->add("gradtune/wraps/" + std::to_string(rank), 1);
  });
  if (wraps) return c10::make_intrusive<c10d::PrefixStore>("gradtune/" + std::to_string(wraps.value()), store);
  throw core::Exception(
      {core::Error::Code::lost, "gradtune: rank " + std::to_string(group->getRank()) +
                                    ": the store does not answer at \"wrap\": " + wraps.error().message});
}

double mbit_per_second(const std::string& text) {
  double rate = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || !(rate > 0)) {
    throw core::Exception({core::Error::Code::invalid, "gradtune: GRADTUNE_PACING_MBIT is \"" + text +
                                                           "\"; allowed is a number above 0, in Mbit/s"});
  }
  return rate;
}

void must(const core::Status& status, const std::string& what) {
  if (!status) throw core::Exception({status.error().code, what + ": " + status.error().message});
}

}  // namespace

Peers::Peers(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options, int64_t timeout_ms,
             const core::Clock& clock, const core::Status& mine, const std::function<core::Status()>* alarm_before,
             std::function<core::Status()> interrupted, const Carrier& carrier, WaitingLine::Say say)
    : rank_(group->getRank()),
      size_(group->getSize()),
      timeout_ms_(timeout_ms),
      interrupted_(std::move(interrupted)),
      collectives_(carrier.stream),
      store_(own_store(group, timeout_ms)),
      roll_call_(store_, rank_, size_, timeout_ms, std::move(say)),
      watch_(store_, rank_, size_) {
  if (!mine) {
    tell_failure({mine.error().code, "rank " + std::to_string(rank_) + " failed in wrap: " + mine.error().message});
    throw core::Exception({mine.error().code, "gradtune: " + mine.error().message});
  }
  network_ = environment_variable("GRADTUNE_NETWORK").value_or("none");
  if (const auto rate = environment_variable("GRADTUNE_PACING_MBIT")) {
    link_ = comm::make_paced_link({.bytes_per_second = mbit_per_second(*rate) * 125e3}, clock);
    network_ = "pacing,rate=" + *rate + "mbit";
  }
  const auto wait_alarm = [&] {
    if (core::Status go_on = interrupted_(); !go_on || alarm_before == nullptr) return go_on;
    return (*alarm_before)();
  };
  const auto transports = roll_call_.await_all("wrap", to_text(carrier.choice), wait_alarm);
  if (!transports) {
    roll_call_.sign_off("failed in wrap");
    const core::Error& error = transports.error();
    const bool is_late = error.code == core::Error::Code::timeout;
    throw core::Exception(
        {error.code, error.message + (is_late ? ", which is option timeout (" + limit_text() + ")" : std::string())});
  }
  try {
    check_transports(transports.value());
    connect(options, clock);
  } catch (const std::exception& caught) {
    const core::Error error = error_of(caught);
    throw core::Exception({error.code, explain(error, /*step=*/0)});
  }
}

// Ranks with several transports would wait for each other's connections.
void Peers::check_transports(const std::vector<std::string>& of_ranks) {
  const auto name_of = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  const auto other =
      std::ranges::find_if(of_ranks, [&](const std::string& text) { return name_of(text) != name_of(of_ranks[0]); });
  if (other == of_ranks.end()) return;
  throw core::Exception(
      {core::Error::Code::mismatch, "what carries gradients differs between ranks: it is " + *other + " on rank " +
                                        std::to_string(other - of_ranks.begin()) + " and " + of_ranks[0] +
                                        " on rank 0; allowed is one for all, such as that of option collectives"});
}

void Peers::connect(const Options& options, const core::Clock& clock) {
  constexpr int kAtOnce = 4;
  machine_.collectives_at_once = kAtOnce;
  data_ = make_data(options, "data", rank_, size_, /*threads=*/kAtOnce);
  control_ = make(options, "control", rank_, size_, /*threads=*/1);
  make_levels(options);
  const auto probe = [&](const std::unique_ptr<comm::Communicator>& communicator) {
    constexpr int64_t kMostBytes = 8 << 20;
    if (!communicator) return Probed();
    exec::Device* const device = communicator->space() == core::Space::host ? nullptr : &collectives_->device();
    return probe_link({*communicator, clock, timeout_ms_, [this] { return alarm(); }, device}, kMostBytes);
  };
  const Probed flat = probe(data_), inter = probe(inter_), intra = probe(intra_);
  machine_.idle_links = {.flat = flat.link, .inter = inter.link, .intra = intra.link};
  const double cores = share_of_cores();
  machine_.cores = {.of_rank = cores,
                    .computing = std::min(cores, static_cast<double>(at::get_num_threads())),
                    .network = std::min(cores, flat.cores)};
}

// The share of the cores that this rank may use, which other ranks on its node may share.
double Peers::share_of_cores() {
  const AllowedCores mine = allowed_cores();
  core::Hasher name;
  name.add(node_name(environment_variable));
  name.add(mine.names);
  const std::vector<uint64_t> all = gather(name.value());
  return static_cast<double>(mine.count) / static_cast<double>(std::ranges::count(all, name.value()));
}

Peers::~Peers() { close(/*failed=*/true); }

std::unique_ptr<comm::Communicator> Peers::make(const Options& options, const std::string& name, int rank, int size,
                                                int threads) {
  auto backend = options.make_group ? options.make_group(name)->getBackend(c10::DeviceType::CPU)
                                    : make_gloo_backend(name, store_, rank, size, timeout_ms_, threads);
  auto communicator = make_c10d_communicator(std::move(backend));
  return link_ ? comm::make_paced(std::move(communicator), link_) : std::move(communicator);
}

std::unique_ptr<comm::Communicator> Peers::make_data(const Options& options, const std::string& name, int rank,
                                                     int size, int threads) {
  if (collectives_ == nullptr) return make(options, name, rank, size, threads);
  return make_nccl_group(name, store_, rank, size, timeout_ms_, *collectives_);
}

// A user's factory makes only groups over all ranks, and a paced link stands for one link between all ranks. In both
// cases there are no levels.
void Peers::make_levels(const Options& options) {
  core::Hasher name;
  name.add(node_name(environment_variable));
  seat_ = core::find_seat(rank_, gather(name.value()));
  if (options.make_group || link_) seat_ = {.rank = rank_, .size = size_};
  if (!seat_.has_levels()) return;
  constexpr int kThreads = 2;
  intra_ = make_data(options, "intra/" + std::to_string(seat_.node), seat_.local_rank, seat_.local_size, kThreads);
  inter_ = make_data(options, "inter/" + std::to_string(seat_.local_rank), seat_.node, seat_.nodes, kThreads);
}

core::Status Peers::run(const comm::Collective& collective) {
  return comm::run(*control_, collective, [this] { return alarm(); });
}

void Peers::broadcast(std::byte* data, int64_t bytes, int root) {
  must(run({.kind = Collective::Kind::broadcast, .out = data, .count = bytes, .root = root, .timeout_ms = timeout_ms_}),
       "broadcast from rank " + std::to_string(root));
}

std::string Peers::broadcast_text(const std::string& text, int root) {
  uint64_t bytes = text.size();
  broadcast(reinterpret_cast<std::byte*>(&bytes), sizeof bytes, root);
  core::check(bytes <= uint64_t{1} << 30, "a rank broadcast a text of impossible length");
  std::string received = text;
  received.resize(bytes);
  if (bytes > 0) broadcast(reinterpret_cast<std::byte*>(received.data()), static_cast<int64_t>(bytes), root);
  return received;
}

// An error of rank 0 travels with the text, so that all ranks end with the same error.
std::string Peers::broadcast_file(const std::string& path, int64_t most_bytes, const std::string& needed_for) {
  constexpr char kRead = 'r', kError = '!';
  std::string text;
  if (rank_ == 0) {
    const auto read = tuner::read_file(path, most_bytes);
    text = read ? kRead + read.value() : kError + read.error().message;
  }
  text = broadcast_text(text);
  core::check(!text.empty(), "rank 0 broadcast nothing");
  if (text[0] == kError) {
    throw core::Exception({core::Error::Code::io, "gradtune: " + needed_for + ": " + text.substr(1)});
  }
  return text.substr(1);
}

std::vector<uint64_t> Peers::gather(uint64_t value) {
  std::vector<uint64_t> values(static_cast<size_t>(size_));
  must(run({.kind = Collective::Kind::all_gather,
            .in = reinterpret_cast<const std::byte*>(&value),
            .out = reinterpret_cast<std::byte*>(values.data()),
            .count = sizeof value,
            .timeout_ms = timeout_ms_}),
       "comparison of ranks");
  return values;
}

void Peers::max(std::vector<uint8_t>& values) {
  must(run({.kind = Collective::Kind::all_reduce,
            .reduction = Collective::Reduction::max,
            .out = reinterpret_cast<std::byte*>(values.data()),
            .count = static_cast<int64_t>(values.size()),
            .timeout_ms = timeout_ms_}),
       "comparison of ranks");
}

void Peers::sum(std::span<float> values) {
  must(run({.kind = Collective::Kind::all_reduce,
            .type = comm::WireType::f32,
            .out = reinterpret_cast<std::byte*>(values.data()),
            .count = static_cast<int64_t>(values.size()),
            .timeout_ms = timeout_ms_}),
       "sum over ranks");
}

void Peers::must_succeed(const std::string& what, const core::Status& mine) {
  // One byte for success or the kind of error, then the message, truncated if it is long.
  constexpr size_t kBytes = 1024;
  std::array<char, kBytes> told{};
  if (!mine) {
    told[0] = 1;
    told[1] = static_cast<char>(mine.error().code);
    mine.error().message.copy(told.data() + 2, kBytes - 3);
  }
  std::vector<char> all(kBytes * static_cast<size_t>(size_));
  must(run({.kind = Collective::Kind::all_gather,
            .in = reinterpret_cast<const std::byte*>(told.data()),
            .out = reinterpret_cast<std::byte*>(all.data()),
            .count = kBytes,
            .timeout_ms = timeout_ms_}),
       "comparison of ranks");
  for (int rank = 0; rank < size_; ++rank) {
    const char* one = all.data() + kBytes * static_cast<size_t>(rank);
    if (one[0] == 0) continue;
    const auto code = static_cast<uint8_t>(one[1]) <= static_cast<uint8_t>(core::Error::Code::peer)
                          ? static_cast<core::Error::Code>(one[1])
                          : core::Error::Code::corrupt;
    const std::string message(one + 2, ::strnlen(one + 2, kBytes - 2));
    throw core::Exception({code, "gradtune: rank " + std::to_string(rank) + " can not " + what + ": " + message});
  }
}

void Peers::must_agree(const std::string& what, const std::string& text) {
  core::Hasher hasher;
  hasher.add(text);
  const std::vector<uint64_t> hashes = gather(hasher.value());
  const std::string differing = tuner::differing_ranks(hashes);
  if (differing.empty()) return;
  // All ranks see the same first two texts that differ, and report the same.
  const auto other = std::ranges::find_if(hashes, [&](uint64_t hash) { return hash != hashes[0]; }) - hashes.begin();
  const int other_rank = static_cast<int>(other);
  const std::string first = broadcast_text(text), second = broadcast_text(text, other_rank);
  throw core::Exception({core::Error::Code::mismatch, what + " differ between ranks (from rank 0: rank " + differing +
                                                          "): " + first_difference(second, other_rank, first, 0)});
}

std::string Peers::limit_text() const {
  std::ostringstream text;
  text << static_cast<double>(timeout_ms_) / 1000 << " s";
  return text.str();
}

void Peers::tell_failure(const core::Error& error) {
  roll_call_.raise_alarm(error);
  roll_call_.sign_off("failed");
  // If this rank serves the store, the other ranks have to read it before this process may end.
  constexpr int64_t kStayMs = 2000;
  if (rank_ == 0 && size_ > 1) roll_call_.await_ends(std::min(timeout_ms_, kStayMs));
}

std::string Peers::explain(const core::Error& error, int64_t step) {
  using Code = core::Error::Code;
  constexpr int64_t kGraceMs = 1500;
  std::string me = "rank " + std::to_string(rank_) + " at step " + std::to_string(step);
  core::Error known = error;
  if (error.code == Code::lost || error.code == Code::timeout) {
    // A rank that failed closes its connections, and other ranks may notice that before its alarm.
    const core::Status told = roll_call_.alarm();
    if (told || told.error().code != Code::peer) {
      if (error.code == Code::timeout) me += ": it waited longer than option timeout (" + limit_text() + ") allows";
      roll_call_.raise_alarm({error.code, me});
      roll_call_.sign_off("failed");
      return "gradtune: " + me + ": " + error.message + "; " + roll_call_.suspects(std::min(timeout_ms_ / 2, kGraceMs));
    }
    known = told.error();
  }
  tell_failure({known.code, me + ": " + known.message});  // an alarm that another rank raised first stays
  if (known.code == Code::peer) failed_process_ = roll_call_.failed_process();
  return "gradtune: " + me + ": " + known.message;
}

void Peers::leave(int64_t step) { roll_call_.sign_off("left after step " + std::to_string(step)); }

void Peers::close(bool failed) {
  for (auto* group : {&data_, &control_, &intra_, &inter_}) {
    if (failed && *group) (*group)->abort();
  }
  for (auto* group : {&data_, &control_, &intra_, &inter_}) group->reset();
  constexpr std::chrono::seconds kMostWait{5};
  await_end_of_process(std::exchange(failed_process_, {}), kMostWait);
}

}  // namespace gradtune
