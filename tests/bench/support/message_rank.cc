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
constexpr int64_t kWordBytes = 29 * sizeof(double);  // of a step's control word

// Blocks that alternate, and the times of a block; the first ones are dropped.
struct Counts {
  int blocks = 12, times = 60, dropped = 10;
};
constexpr Counts kFew{.blocks = 3, .times = 12, .dropped = 2};  // over a link with a long delay

// Among the collectives is the maximum of a step's control word.
enum class Op : uint8_t { all_reduce, all_gather, control_word };
constexpr const char* kNames[] = {"all_reduce", "all_gather", "control word"};

// Starts one collective on its own buffers and returns a function that waits for it.
using Start = std::function<std::function<void()>()>;

struct Buffers {
  at::Tensor in, out;
};

std::vector<Buffers> buffers_of(Op op, int64_t bytes, int ranks, int at_once) {
  const at::ScalarType type = op == Op::control_word ? at::kDouble : at::kFloat;
  const int64_t count = bytes / (op == Op::control_word ? 8 : 4);
  std::vector<Buffers> buffers;
  for (int i = 0; i < at_once; ++i) buffers.push_back({at::ones({count}, type), at::ones({count * ranks}, type)});
  return buffers;
}

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

Start of_communicator(comm::Communicator& communicator, Op op, const Buffers& buffers) {
  const Kind kind = op == Op::all_gather ? Kind::all_gather : Kind::all_reduce;
  const bool is_word = op == Op::control_word;
  return [&communicator, kind, is_word, buffers] {
    auto waiter = std::make_shared<comm::Waiter>();
    auto result = std::make_shared<std::future<core::Status>>(waiter->result());
    communicator.start({.kind = kind,
                        .reduction = is_word ? Collective::Reduction::max : Collective::Reduction::sum,
                        .type = is_word ? comm::WireType::f64 : comm::WireType::f32,
                        .in = bytes_of(buffers.in),
                        .out = bytes_of(kind == Kind::all_reduce ? buffers.in : buffers.out),
                        .count = buffers.in.numel(),
                        .timeout_ms = kTimeoutMs},
                       *waiter, 0);
    return [waiter, result] { result->get().value(); };
  };
}

Start of_backend(c10d::Backend& backend, Op op, const Buffers& buffers) {
  return [&backend, op, buffers]() -> std::function<void()> {
    std::vector<at::Tensor> in{buffers.in};
    at::Tensor out = buffers.out, from = buffers.in;
    c10d::AllreduceOptions options;
    if (op == Op::control_word) options.reduceOp = c10d::ReduceOp::MAX;
    const auto work = op == Op::all_gather ? backend._allgather_base(out, from) : backend.allreduce(in, options);
    return [work] { work->wait(); };
  };
}

// The times for starting all of them and waiting for all, us.
std::vector<double> block_us(const std::vector<Start>& starts, const Counts& counts, const core::Clock& clock) {
  std::vector<double> times_us;
  for (int time = 0; time < counts.times + counts.dropped; ++time) {
    const int64_t begin_ns = clock.now_ns();
    std::vector<std::function<void()>> waits;
    for (const Start& start : starts) waits.push_back(start());
    for (const auto& wait : waits) wait();
    if (time >= counts.dropped) times_us.push_back(static_cast<double>(clock.now_ns() - begin_ns) * 1e-3);
  }
  return times_us;
}

c10::intrusive_ptr<c10d::Backend> plain_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create_default(std::chrono::milliseconds(kTimeoutMs));
  options->threads = kThreads;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

void work(const std::string& out, double delay_us) {
  const Counts counts = delay_us > 0 ? kFew : Counts();
  const core::SteadyClock clock;
  const auto group = init_process_group();
  const int rank = group->getRank(), size = group->getSize();
  const auto communicator =
      make_c10d_communicator(make_gloo_backend("messages", group->getStore(), rank, size, kTimeoutMs, kThreads));
  communicator->expect_delay(delay_us);
  const auto plain = plain_gloo(c10::make_intrusive<c10d::PrefixStore>("plain", group->getStore()), rank, size);
  nlohmann::json rows = nlohmann::json::array();
  for (const Op op : {Op::control_word, Op::all_reduce, Op::all_gather}) {
    const bool is_word = op == Op::control_word;
    for (const int64_t bytes : is_word ? std::vector{kWordBytes} : std::vector<int64_t>{512, 64 << 10, 1 << 20}) {
      for (const int at_once : is_word ? std::vector{1} : std::vector{1, 2}) {
        std::vector<Start> ours, theirs;
        for (const Buffers& buffers : buffers_of(op, bytes, size, at_once)) {
          ours.push_back(of_communicator(*communicator, op, buffers));
          theirs.push_back(of_backend(*plain, op, buffers));
        }
        nlohmann::json row{{"kind", kNames[static_cast<size_t>(op)]}, {"bytes", bytes}, {"at_once", at_once}};
        for (int block = 0; block < counts.blocks; ++block) {
          row["gradtune_us"].push_back(block_us(ours, counts, clock));
          row["c10d_us"].push_back(block_us(theirs, counts, clock));
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
  if (argc != 3) {
    std::fprintf(stderr, "usage: message_rank OUT.json DELAY_US\n");
    return 2;
  }
  try {
    gradtune::bench::work(argv[1], std::stod(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "message_rank: %s\n", error.what());
    return 1;
  }
}
