// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/nccl.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "engine/comm/nccl_library.h"
#include "engine/core/bounded_wait.h"

namespace gradtune::comm {
namespace {

using Kind = Collective::Kind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLookEvery(10);  // the interval of checks for errors and deadlines while something is under way

nccl::Type type_of(WireType type) {
  switch (type) {
    case WireType::u8: return nccl::Type::u8;
    case WireType::f32: return nccl::Type::f32;
    case WireType::f64: return nccl::Type::f64;
    case WireType::bf16: return nccl::Type::bf16;
    case WireType::f16: return nccl::Type::f16;
  }
  return nccl::Type::u8;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(nccl::Library library, nccl::Comm comm, const NcclOptions& options, CollectiveStream& stream)
      : library_(std::move(library)), comm_(comm), rank_(options.rank), size_(options.size), stream_(stream) {}

  ~NcclCommunicator() override {
    {
      std::unique_lock lock(mutex_);
      core::wait_or_end_process(
          changed_, lock, [&] { return under_way_.empty(); }, "collectives of NCCL");
      is_closed_ = true;
    }
    changed_.notify_all();
    watch_.join();
    if (comm_ == nullptr) return;
    // Collectives that have ended here may still be in progress on other ranks, so CommFinalize waits for them. The
    // limit is for ranks that failed: they do not take part in that.
    constexpr int64_t kMostMs = 5'000;
    const core::Status flushed = settle(library_.CommFinalize(comm_), "CommFinalize", kMostMs);
    flushed ? library_.CommDestroy(comm_) : library_.CommAbort(comm_);
  }

  // Returns an error at the deadline if not all ranks have connected.
  core::Status connect(int64_t within_ms) {
    core::Status connected = settle(nccl::Code::in_progress, "CommInitRankConfig", within_ms);
    if (connected) watch_ = core::BoundedThread("the watch over NCCL", [this] { watch(); });
    return connected;
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  core::Space space() const override { return core::Space::cuda; }

  core::Status health() const override {
    const std::lock_guard lock(mutex_);
    return failure_ ? core::Status(core::copy_of(*failure_)) : core::Status();
  }

  void start(const Collective& collective, CompletionSink& sink, uint64_t token) override {
    core::check(core::is_collective(collective.kind), "a communicator runs collectives");
    core::Status status = health();
    core::Fence done;
    if (status) status = stream_.after(collective.after, collective.timeout_ms);
    if (status) status = enqueue(collective);
    if (status) {
      done = stream_.mark();
      const std::lock_guard lock(mutex_);
      under_way_.push_back(
          {done, steady_clock::now() + milliseconds(collective.timeout_ms), collective.kind, collective.timeout_ms});
      changed_.notify_all();
    } else {
      fail(core::copy_of(status.error()));
    }
    tell(sink, token, std::move(status), done);
  }

  void abort() override { fail({core::Error::Code::lost, "the communicator was aborted"}); }

 private:
  struct UnderWay {
    core::Fence done;
    steady_clock::time_point deadline;
    Kind kind;
    int64_t timeout_ms;
  };

  core::Status enqueue(const Collective& what) {
    nccl::Code code = nccl::Code::success;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return core::copy_of(*failure_);
      code = call(what);
    }
    return settle(code, std::string(core::to_string(what.kind)), what.timeout_ms);
  }

  nccl::Code call(const Collective& what) const {
    const auto count = static_cast<size_t>(what.count);
    const nccl::Type type = type_of(what.type);
    const nccl::Reduction reduction =
        what.reduction == core::Reduction::max ? nccl::Reduction::max : nccl::Reduction::sum;
    void* const stream = stream_.handle();
    switch (what.kind) {
      case Kind::all_reduce: return library_.AllReduce(what.out, what.out, count, type, reduction, comm_, stream);
      case Kind::reduce_scatter:
        return library_.ReduceScatter(what.in, what.out, count, type, reduction, comm_, stream);
      case Kind::all_gather:
        return what.among ? exchange(what) : library_.AllGather(what.in, what.out, count, type, comm_, stream);
      case Kind::reduce: return library_.Reduce(what.out, what.out, count, type, reduction, what.root, comm_, stream);
      case Kind::broadcast: return library_.Broadcast(what.out, what.out, count, type, what.root, comm_, stream);
      case Kind::all_to_all:
      case Kind::gather: return exchange(what);
      case Kind::encode:
      case Kind::decode: break;
    }
    throw std::logic_error("unknown collective");
  }

  // Messages, all at once, for the collectives that NCCL does not have.
  nccl::Code exchange(const Collective& what) const {
    const auto count = static_cast<size_t>(what.count);
    const int64_t bytes = what.count * bytes_per_element(what.type);
    const nccl::Type type = type_of(what.type);
    void* const stream = stream_.handle();
    const bool gathers = what.kind != Kind::all_to_all;  // every rank gives the same to all
    const bool has_root = what.kind == Kind::gather;
    const core::Subgroup ranks = ranks_of(what, size_);
    nccl::Code first = library_.GroupStart();
    const auto note = [&](nccl::Code code) {
      if (first == nccl::Code::success) first = code;
    };
    for (int index = 0; index < ranks.size; ++index) {
      const int peer = ranks.rank_at(index, rank_);
      std::byte* const to = what.out + index * bytes;
      const std::byte* const from = gathers ? what.in : what.in + index * bytes;
      if (peer == rank_ && from == to) continue;  // in place
      const bool sends = !has_root || peer == what.root, receives = !has_root || rank_ == what.root;
      if (sends) note(library_.Send(from, count, type, peer, comm_, stream));
      if (receives) note(library_.Recv(to, count, type, peer, comm_, stream));
    }
    const nccl::Code end = library_.GroupEnd();
    return first == nccl::Code::success || first == nccl::Code::in_progress ? end : first;
  }

  // Calls do not block, so this polls until they are no longer in progress.
  core::Status settle(nccl::Code code, const std::string& what, int64_t timeout_ms) {
    const auto deadline = steady_clock::now() + milliseconds(timeout_ms);
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (failure_) return core::copy_of(*failure_);
        if (code == nccl::Code::in_progress) {
          const nccl::Code asked = library_.CommGetAsyncError(comm_, &code);
          if (asked != nccl::Code::success) code = asked;
        }
        if (code == nccl::Code::success) return {};
        if (code != nccl::Code::in_progress) return library_.error(code, what, comm_);
      }
      if (steady_clock::now() >= deadline) {
        return core::Error{core::Error::Code::timeout,
                           what + " did not begin on all ranks within " + std::to_string(timeout_ms) + " ms"};
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  // Only the first error counts. Collectives that have passed by then are correct.
  void fail(core::Error error) {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    drop_passed();
    failure_ = std::move(error);
    if (comm_ != nullptr) library_.CommAbort(std::exchange(comm_, nullptr));
    under_way_.clear();  // these end now, with undefined results
    changed_.notify_all();
  }

  void drop_passed() {
    while (!under_way_.empty() && under_way_.front().done.passed()) under_way_.pop_front();
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!is_closed_) {
      if (under_way_.empty()) {
        changed_.wait_for(lock, std::chrono::seconds(1));
        continue;
      }
      changed_.wait_for(lock, kLookEvery, [&] { return is_closed_; });
      drop_passed();
      changed_.notify_all();
      if (under_way_.empty() || failure_) continue;
      std::optional<core::Error> error;
      nccl::Code code = nccl::Code::success;
      library_.CommGetAsyncError(comm_, &code);
      if (code != nccl::Code::success && code != nccl::Code::in_progress) {
        error = library_.error(code, "a collective under way", comm_);
      } else if (steady_clock::now() >= under_way_.front().deadline) {
        const UnderWay& late = under_way_.front();
        error = {core::Error::Code::timeout, std::string(core::to_string(late.kind)) + " did not end within " +
                                                 std::to_string(late.timeout_ms) + " ms"};
      }
      if (!error) continue;
      lock.unlock();
      fail(std::move(*error));
      lock.lock();
    }
  }

  const nccl::Library library_;
  nccl::Comm comm_;  // null after an abort
  const int rank_, size_;
  CollectiveStream& stream_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<UnderWay> under_way_;  // in the order in which fences of the stream pass
  std::optional<core::Error> failure_;
  bool is_closed_ = false;
  core::BoundedThread watch_;
};

}  // namespace

core::Result<std::unique_ptr<Communicator>> make_nccl_communicator(const NcclOptions& options,
                                                                   CollectiveStream& stream) {
  core::Result<nccl::Library> library = nccl::load(options.library);
  if (!library) return library.error();
  nccl::UniqueId id{};
  std::string mine;
  if (options.rank == 0) {
    const nccl::Code code = library.value().GetUniqueId(&id);
    if (code != nccl::Code::success) return library.value().error(code, "GetUniqueId", nullptr);
    mine.assign(id.bytes, sizeof id.bytes);
  }
  const core::Result<std::string> shared = options.share(mine);
  if (!shared) return shared.error();
  if (shared.value().size() != sizeof id.bytes) {
    return core::Error{core::Error::Code::corrupt, "rank 0's id of NCCL has " + std::to_string(shared.value().size()) +
                                                       " bytes, not " + std::to_string(sizeof id.bytes)};
  }
  std::memcpy(id.bytes, shared.value().data(), sizeof id.bytes);
  nccl::Comm comm = nullptr;
  nccl::Config config;
  const nccl::Code code = library.value().CommInitRankConfig(&comm, options.size, id, options.rank, &config);
  if (code != nccl::Code::success && code != nccl::Code::in_progress) {
    return library.value().error(code, "CommInitRankConfig", nullptr);
  }
  auto made = std::make_unique<NcclCommunicator>(std::move(library.value()), comm, options, stream);
  if (core::Status connected = made->connect(options.connect_within_ms); !connected) {
    made->abort();
    return connected.error();
  }
  return std::unique_ptr<Communicator>(std::move(made));
}

}  // namespace gradtune::comm
