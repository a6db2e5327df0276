// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank of the benchmark of messages: small collectives over gradtune's communicator and over c10d's own Gloo
// group, in alternating blocks. Rank 0 writes their times as JSON.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/clock.h"
#include "gradtune/gradtune.h"
#include "hooks/c10d/communicator.h"
#include "tuner/files/file_io.h"

namespace gradtune::bench {
namespace {

using comm::Collective;
using Kind = Collective::Kind;

constexpr int64_t kTimeoutMs = 60'000;
constexpr int kThreads = 2;
constexpr int kBlocks = 12, kTimes = 60, kDropped = 10;  // of a block; the first ones are dropped

// Starts one collective on its own buffers and returns a function that waits for it.
using Start = std::function<std::function<void()>()>;

struct Buffers {
  at::Tensor in, out;
};

std::vector<Buffers> buffers_of(int64_t floats, int ranks, int at_once) {
  std::vector<Buffers> buffers;
  for (int i = 0; i < at_once; ++i) buffers.push_back({at::ones({floats}), at::ones({floats * ranks})});
  return buffers;
}

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

Start of_communicator(comm::Communicator& communicator, Kind kind, const Buffers& buffers) {
  return [&communicator, kind, buffers] {
    auto waiter = std::make_shared<comm::Waiter>();
    auto result = std::make_shared<std::future<core::Status>>(waiter->result());
    communicator.start({.kind = kind,
                        .type = comm::WireType::f32,
                        .in = bytes_of(buffers.in),
                        .out = bytes_of(kind == Kind::all_reduce ? buffers.in : buffers.out),
                        .count = buffers.in.numel(),
                        .timeout_ms = kTimeoutMs},
                       *waiter, 0);
    return [waiter, result] { result->get().value(); };
  };
}

Start of_backend(c10d::Backend& backend, Kind kind, const Buffers& buffers) {
  return [&backend, kind, buffers]() -> std::function<void()> {
    std::vector<at::Tensor> in{buffers.in};
    at::Tensor out = buffers.out, from = buffers.in;
    const auto work = kind == Kind::all_reduce ? backend.allreduce(in) : backend._allgather_base(out, from);
    return [work] { work->wait(); };
  };
}

// The times for starting all of them and waiting for all, us.
std::vector<double> block_us(const std::vector<Start>& starts, const core::Clock& clock) {
  std::vector<double> times_us;
  for (int time = 0; time < kTimes + kDropped; ++time) {
    const int64_t begin_ns = clock.now_ns();
    std::vector<std::function<void()>> waits;
    for (const Start& start : starts) waits.push_back(start());
    for (const auto& wait : waits) wait();
    if (time >= kDropped) times_us.push_back(static_cast<double>(clock.now_ns() - begin_ns) * 1e-3);
  }
  return times_us;
}

c10::intrusive_ptr<c10d::Backend> plain_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create_default(std::chrono::milliseconds(kTimeoutMs));
  options->threads = kThreads;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

void work(const std::string& out) {
  const core::SteadyClock clock;
  const auto group = init_process_group();
  const int rank = group->getRank(), size = group->getSize();
  const auto communicator =
      make_c10d_communicator(make_gloo_backend("messages", group->getStore(), rank, size, kTimeoutMs, kThreads));
  const auto plain = plain_gloo(c10::make_intrusive<c10d::PrefixStore>("plain", group->getStore()), rank, size);
  nlohmann::json rows = nlohmann::json::array();
  for (const Kind kind : {Kind::all_reduce, Kind::all_gather}) {
    for (const int64_t floats : {int64_t{128}, int64_t{16384}}) {
      for (const int at_once : {1, 2}) {
        std::vector<Start> ours, theirs;
        for (const Buffers& buffers : buffers_of(floats, size, at_once)) {
          ours.push_back(of_communicator(*communicator, kind, buffers));
          theirs.push_back(of_backend(*plain, kind, buffers));
        }
        nlohmann::json row{{"kind", core::to_string(kind)}, {"bytes", 4 * floats}, {"at_once", at_once}};
        for (int block = 0; block < kBlocks; ++block) {
          row["gradtune_us"].push_back(block_us(ours, clock));
          row["c10d_us"].push_back(block_us(theirs, clock));
        }
        rows.push_back(std::move(row));
      }
    }
  }
  if (rank == 0) tuner::write_file_atomically(out, rows.dump() + "\n").value();
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: message_rank OUT.json\n");
    return 2;
  }
  try {
    gradtune::bench::work(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "message_rank: %s\n", error.what());
    return 1;
  }
}
