// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/communicator.h"

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <vector>

#include "engine/comm/add_up.h"
#include "engine/core/bounded_wait.h"
#include "hooks/c10d/gloo_abort.h"
#include "hooks/c10d/gloo_exchange.h"
#include "hooks/c10d/gloo_options.h"
#include "hooks/c10d/small_maximum.h"
#include "hooks/c10d/torch_versions.h"
#include "hooks/c10d/with_deadline.h"

namespace gradtune {
namespace {

using comm::Collective;

c10::ScalarType scalar_type(comm::WireType type) {
  switch (type) {
    case comm::WireType::u8: return at::kByte;
    case comm::WireType::f32: return at::kFloat;
    case comm::WireType::f64: return at::kDouble;
    case comm::WireType::bf16: return at::kBFloat16;
    case comm::WireType::f16: return at::kHalf;
  }
  return at::kByte;
}

// Prefix of the store keys under which each rank publishes its address, for the error message when ranks cannot
// connect.
constexpr const char* kOffered = "offered/";

// Returns an empty list if the store does not answer soon.
std::vector<std::string> offered_by_ranks(const c10::intrusive_ptr<c10d::Store>& store, int size) {
  const auto told = with_deadline(std::chrono::seconds(1), [store, size] {
    std::vector<std::string> all;
    for (int r = 0; r < size; ++r) {
      const std::string key = kOffered + std::to_string(r);
      const std::vector<uint8_t> text = store->check({key}) ? store->get(key) : std::vector<uint8_t>();
      all.emplace_back(text.begin(), text.end());
    }
    return all;
  });
  return told ? told.value() : std::vector<std::string>();
}

void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

// Copies a rank's own part; for payloads, only the bytes in use.
void copy_own(const Collective& what, const std::byte* from, std::byte* to) {
  const int64_t bytes = what.count * bytes_per_element(what.type);
  if (from == to || bytes == 0) return;
  const int64_t step = what.used_bytes == nullptr ? bytes : what.payload_bytes;
  for (int64_t at = 0; at < bytes; at += step) {
    const int64_t used = what.used_bytes == nullptr ? bytes : comm::used_bytes(what, from + at);
    std::memcpy(to + at, from + at, static_cast<size_t>(used));
  }
}

class C10dCommunicator final : public comm::Communicator {
 public:
  explicit C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {
    gloo_ = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupGloo>(backend_);
    if (gloo_) exchange_.emplace(gloo_);
    if (gloo_ && size() > 1) small_.emplace(gloo_);
  }

  // A backend's destructor waits without a time limit for the threads that report the last completions. So it runs
  // on a thread that has a limit. If the backend has no abort, work in flight may take as long as its own timeout.
  ~C10dCommunicator() override {
    core::BoundedThread("the end of a process group", [this] {
      exchange_.reset();
      small_.reset();
      gloo_.reset();
      backend_.reset();
      for (int64_t pending = pending_; pending != 0; pending = pending_) pending_.wait(pending);
    }).join(longest_ms_ + core::kMostWaitMs);
  }

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }

  // Gloo implements reduce-scatter as an all-reduce and a slice. This class instead gathers every rank's part for
  // this rank with an all-to-all, one after another, and adds them up. Other backends may not support messages
  // between two ranks. There an all-to-all carries the traffic among some ranks and is empty for the others.
  int64_t scratch_bytes(const Collective& what) const override {
    const bool needs = what.kind == Collective::Kind::reduce_scatter || (what.among && !exchange_);
    return needs ? what.count * bytes_per_element(what.type) * comm::ranks_of(what, size()).size : 0;
  }

  void expect_delay(double us) override {
    if (exchange_) exchange_->expect_delay(us);
  }

  void start(const Collective& collective, comm::CompletionSink& sink, uint64_t token) override {
    if (aborted_) {
      sink.complete(token, core::Error{core::Error::Code::lost, "the communicator was aborted"}, {});
      return;
    }
    if (!comm::await_buffers(collective, sink, token)) return;
    if (size() == 1) {  // no other rank takes part, so no thread is needed
      if (!core::traits_of(collective.kind).is_in_place) copy_own(collective, collective.in, collective.out);
      return comm::tell(sink, token, {});
    }
    longest_ms_ = std::max(longest_ms_, collective.timeout_ms);
    std::shared_ptr<Running> running;
    try {
      core::check(collective.scratch != nullptr || scratch_bytes(collective) == 0,
                  "a collective has its scratch memory");
      running = std::make_shared<Running>(*this, collective, sink, token);
      begin(running);
    } catch (...) {
      core::Status failed = c10d_error(std::current_exception());
      abort();  // other ranks may have begun it, and would match it with this rank's next collective
      if (running) {
        running->end(std::move(failed));
      } else {
        sink.complete(token, std::move(failed), {});
      }
    }
  }

  void abort() override {
    if (aborted_.exchange(true)) return;
    try {
      if (exchange_) exchange_->abort();
      if (small_) small_->abort();
      gloo_ ? abort_connections(*gloo_) : backend_->abort();
    } catch (const std::exception&) {
      // Some backends cannot abort. Work in flight then ends by its deadline.
    }
  }

 private:
  // A collective that was started. Its completion is reported exactly once: by the first caller of end(), or when
  // the last owner releases it.
  class Running {
   public:
    Running(C10dCommunicator& owner, const Collective& what, comm::CompletionSink& sink, uint64_t token)
        : collective(what), owner_(owner), sink_(sink), token_(token) {
      ++owner_.pending_;
    }
    ~Running() { end(core::Error{core::Error::Code::lost, "the collective was given up"}); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

    // This runs on threads of libraries, where an exception would end the process.
    void end(core::Status status) noexcept {
      if (has_ended_.exchange(true)) return;
      try {
        if (status && collective.kind == Collective::Kind::reduce_scatter) add_up();
      } catch (...) {
        status = c10d_error(std::current_exception());
      }
      try {
        sink_.complete(token_, std::move(status), {});
      } catch (...) {
        // The completion was already reported.
      }
      if (--owner_.pending_ == 0) owner_.pending_.notify_all();
    }

    const Collective collective;

   private:
    void add_up() {
      std::byte* const target = collective.out;
      const int64_t bytes = collective.count * bytes_per_element(collective.type);
      std::vector<const std::byte*> parts;
      for (int r = 0; r < owner_.size(); ++r) parts.push_back(collective.scratch + r * bytes);
      comm::add_up(collective.type, collective.reduction, parts, {&target, 1}, collective.count);
    }

    C10dCommunicator& owner_;
    comm::CompletionSink& sink_;
    const uint64_t token_;
    std::atomic<bool> has_ended_ = false;
  };

  void begin(const std::shared_ptr<Running>& running) {
    if (exchange_ && is_exchange(running->collective)) return exchange(running);
    if (small_ && is_small_maximum(running->collective)) return take_maxima(running);
    launch(*running)->getFuture()->addCallback([running](c10::ivalue::Future& future) {
      running->end(future.hasError() ? core::Status(c10d_error(future.exception_ptr())) : core::Status());
    });
  }

  c10::intrusive_ptr<c10d::Work> launch(const Running& running) {
    const Collective& what = running.collective;
    const std::chrono::milliseconds timeout(what.timeout_ms);
    switch (what.kind) {
      case Collective::Kind::reduce_scatter:
        return all_to_all(view(what.in, what.count * size(), what.type),
                          view(what.scratch, what.count * size(), what.type), timeout);
      case Collective::Kind::reduce: {
        c10d::ReduceOptions options;
        options.reduceOp = reduction_of(what);
        options.rootRank = what.root;
        options.timeout = timeout;
        std::vector<at::Tensor> tensors{view(what.out, what.count, what.type)};
        return backend_->reduce(tensors, options);
      }
      case Collective::Kind::gather: {
        c10d::GatherOptions options;
        options.rootRank = what.root;
        options.timeout = timeout;
        std::vector<at::Tensor> in{view(what.in, what.count, what.type)};
        std::vector<std::vector<at::Tensor>> out;
        if (rank() == what.root) {
          out.emplace_back();
          const int64_t bytes = what.count * bytes_per_element(what.type);
          for (int r = 0; r < size(); ++r) out[0].push_back(view(what.out + r * bytes, what.count, what.type));
        }
        return backend_->gather(out, in, options);
      }
      case Collective::Kind::all_reduce: {
        c10d::AllreduceOptions options;
        options.reduceOp = reduction_of(what);
        options.timeout = timeout;
        std::vector<at::Tensor> tensors{view(what.out, what.count, what.type)};
        return backend_->allreduce(tensors, options);
      }
      case Collective::Kind::all_gather:
        return what.among ? all_gather_among_some(what, timeout) : all_gather(what, timeout);
      case Collective::Kind::all_to_all:
        return all_to_all(view(what.in, what.count * size(), what.type), view(what.out, what.count * size(), what.type),
                          timeout);
      case Collective::Kind::broadcast: {
        c10d::BroadcastOptions options;
        options.rootRank = what.root;
        options.timeout = timeout;
        std::vector<at::Tensor> tensors{view(what.out, what.count, what.type)};
        return backend_->broadcast(tensors, options);
      }
      case Collective::Kind::encode:
      case Collective::Kind::decode: break;
    }
    throw std::logic_error("unknown collective");
  }

  c10::intrusive_ptr<c10d::Work> all_to_all(at::Tensor in, at::Tensor out, std::chrono::milliseconds timeout) {
    std::vector<int64_t> even_out, even_in;
    c10d::AllToAllOptions options;
    options.timeout = timeout;
    return backend_->alltoall_base(out, in, even_out, even_in, options);
  }

  c10::intrusive_ptr<c10d::Work> all_gather(const Collective& what, std::chrono::milliseconds timeout) {
    c10d::AllgatherOptions options;
    options.timeout = timeout;
    at::Tensor in = view(what.in, what.count, what.type);
    at::Tensor out = view(what.out, what.count * size(), what.type);
    return backend_->_allgather_base(out, in, options);
  }

  c10::intrusive_ptr<c10d::Work> all_gather_among_some(const Collective& what, std::chrono::milliseconds timeout) {
    const core::Subgroup ranks = comm::ranks_of(what, size());
    const int64_t bytes = what.count * bytes_per_element(what.type);
    std::vector<int64_t> in_counts(static_cast<size_t>(size()));
    for (int index = 0; index < ranks.size; ++index) {
      in_counts[static_cast<size_t>(ranks.rank_at(index, rank()))] = what.count;
      if (bytes > 0) std::memcpy(what.scratch + index * bytes, what.in, static_cast<size_t>(bytes));
    }
    std::vector<int64_t> out_counts = in_counts;
    c10d::AllToAllOptions options;
    options.timeout = timeout;
    at::Tensor in = view(what.scratch, what.count * ranks.size, what.type);
    at::Tensor out = view(what.out, what.count * ranks.size, what.type);
    return backend_->alltoall_base(out, in, out_counts, in_counts, options);
  }

  // True for collectives that are sent as messages between ranks: pairwise ones, ones among some ranks, ones whose
  // payloads may be shorter than their buffers, and short all-gathers, whose messages take one delay here. All other
  // all-gathers over more ranks go around in one direction, and Gloo's own are as good.
  bool is_exchange(const Collective& what) const {
    const int64_t bytes = what.count * bytes_per_element(what.type);
    return core::traits_of(what.kind).is_pairwise ||
           (what.kind == Collective::Kind::all_gather &&
            (what.among || size() == 2 || what.used_bytes != nullptr || exchange_->is_eager(bytes)));
  }

  static bool is_small_maximum(const Collective& what) {
    return what.kind == Collective::Kind::all_reduce && what.reduction == Collective::Reduction::max &&
           what.type == comm::WireType::f64 && what.count > 0 && what.count <= SmallMaximum::kMost;
  }

  void take_maxima(const std::shared_ptr<Running>& running) {
    const Collective& what = running->collective;
    small_->start({reinterpret_cast<double*>(what.out), static_cast<size_t>(what.count)},
                  std::chrono::milliseconds(what.timeout_ms),
                  [running](core::Status status) { running->end(std::move(status)); });
  }

  void exchange(const std::shared_ptr<Running>& running) {
    const Collective& what = running->collective;
    const int64_t bytes = what.count * bytes_per_element(what.type);
    std::byte* const out = what.kind == Collective::Kind::reduce_scatter ? what.scratch : what.out;
    const bool goes_around = what.kind == Collective::Kind::all_gather;
    const std::byte* const own = goes_around ? what.in : what.in + rank() * bytes;
    GlooExchange::Messages messages;
    if (bytes > 0) messages = goes_around ? around(what, out) : between_pairs(what, out);
    if (what.used_bytes != nullptr) {
      messages.length = [what](const at::Tensor& payload) {
        return comm::used_bytes(what, static_cast<const std::byte*>(payload.const_data_ptr()));
      };
    }
    const int index = comm::ranks_of(what, size()).index_of(rank());
    const auto meanwhile = [what, own, to = out + index * bytes] { copy_own(what, own, to); };
    exchange_->start(std::move(messages), std::chrono::milliseconds(what.timeout_ms), meanwhile,
                     [running](core::Status status) { running->end(std::move(status)); });
  }

  GlooExchange::Messages between_pairs(const Collective& what, std::byte* out) const {
    const int64_t bytes = what.count * bytes_per_element(what.type);
    GlooExchange::Messages messages;
    for (int distance = 1; distance < size(); ++distance) {  // so that not all ranks send to the same one at once
      const int peer = (rank() + distance) % size();
      for (const at::Tensor& to : messages_of(what, out + peer * bytes)) messages.receives.push_back({peer, to});
      for (const at::Tensor& from : messages_of(what, what.in + peer * bytes)) messages.sends.push_back({peer, from});
    }
    return messages;
  }

  // Ring all-gather: each rank passes on to the next one the part that it received from the previous one. So a
  // node's link carries each part once.
  GlooExchange::Messages around(const Collective& what, std::byte* out) const {
    const int64_t bytes = what.count * bytes_per_element(what.type);
    const core::Subgroup ranks = comm::ranks_of(what, size());
    const int index = ranks.index_of(rank());
    const int next = ranks.rank_at((index + 1) % ranks.size, rank());
    const int before = ranks.rank_at((index + ranks.size - 1) % ranks.size, rank());
    GlooExchange::Messages messages;
    if (ranks.size == 1) return messages;
    for (const at::Tensor& from : messages_of(what, what.in)) messages.sends.push_back({next, from});
    for (int distance = 1; distance < ranks.size; ++distance) {
      const int source = (index + ranks.size - distance) % ranks.size;
      for (const at::Tensor& part : messages_of(what, out + source * bytes)) {
        if (distance + 1 < ranks.size) {
          messages.sends.push_back({next, part, static_cast<int>(messages.receives.size())});
        }
        messages.receives.push_back({before, part});
      }
    }
    return messages;
  }

  // The messages that carry one rank's part to another: one for each payload if some may be shorter than their
  // buffers.
  static std::vector<at::Tensor> messages_of(const Collective& what, const std::byte* part) {
    const at::Tensor all = view(part, what.count, what.type);
    if (what.used_bytes == nullptr) return {all};
    return all.split(what.payload_bytes / bytes_per_element(what.type));
  }

  static c10d::ReduceOp reduction_of(const Collective& what) {
    return what.reduction == Collective::Reduction::max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  }

  static at::Tensor view(const std::byte* data, int64_t count, comm::WireType type) {
    return at::from_blob(const_cast<std::byte*>(data), {count}, at::TensorOptions(scalar_type(type)));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  // Set if the backend is Gloo.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::optional<GlooExchange> exchange_;
  std::optional<SmallMaximum> small_;  // if there are other ranks
  std::atomic<bool> aborted_ = false;
  int64_t longest_ms_ = 0;  // the timeout of one collective
  std::atomic<int64_t> pending_ = 0;
};

}  // namespace

std::unique_ptr<comm::Communicator> make_c10d_communicator(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_unique<C10dCommunicator>(std::move(backend));
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const std::string& prefix,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    int64_t timeout_ms, int threads, int64_t connect_within_ms) {
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  ignore_broken_pipes();
  const milliseconds timeout(timeout_ms), limit(connect_within_ms > 0 ? connect_within_ms : timeout_ms);
  const auto deadline = Clock::now() + limit;
  const auto fail = [&](const core::Error& error, const std::string& no_answer, const std::string& hint = "") {
    const bool silent = error.code == core::Error::Code::timeout;
    throw core::Exception({error.code == core::Error::Code::invalid ? error.code : core::Error::Code::lost,
                           "connecting the group \"" + prefix + "\" failed: " + (silent ? no_answer : error.message) +
                               (hint.empty() ? "" : "; " + hint)});
  };
  const std::string in_time = " within " + std::to_string(limit.count()) + " ms";
  if (const core::Status usable = check_interfaces(environment_variable); !usable) fail(usable.error(), "");
  const auto options = with_deadline(limit, [limit] { return make_gloo_options(limit); });
  if (!options) fail(options.error(), "the address of this host's name was not found" + in_time);
  const std::string offered = offered_address(*options.value());
  // Gloo's own limit comes first, because its error says more about the cause. That limit applies to peers only, not
  // to the store.
  const auto left = std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(10));
  options.value()->timeout = left * 9 / 10;
  options.value()->threads = threads;
  const auto own_store = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  const auto backend = with_deadline(left, [own_store, rank, size, offered, options = options.value()] {
    own_store->set(kOffered + std::to_string(rank), std::vector<uint8_t>(offered.begin(), offered.end()));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(own_store, rank, size, options);
  });
  if (!backend) {
    std::vector<std::string> all = offered_by_ranks(own_store, size);
    if (all.empty() && is_loopback(offered)) {  // rank 0 may have left and closed the store
      all.resize(static_cast<size_t>(size));
      all[static_cast<size_t>(rank)] = offered;
    }
    fail(backend.error(), "not all ranks were connected" + in_time,
         all.empty() ? "" : why_unreachable(all, rank, environment_variable));
  }
  versions::set_timeout(*backend.value(), timeout);
  return backend.value();
}

}  // namespace gradtune
