// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d_communicator.h"

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
#include <optional>
#include <vector>

#include "hooks/gloo_abort.h"
#include "hooks/gloo_exchange.h"
#include "hooks/gloo_options.h"
#include "hooks/within.h"

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

void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

class C10dCommunicator final : public comm::Communicator {
 public:
  explicit C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {
    gloo_ = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupGloo>(backend_);
    if (gloo_) exchange_.emplace(gloo_);
  }

  ~C10dCommunicator() override {
    exchange_.reset();
    gloo_.reset();
    backend_.reset();  // ends its threads, which tell the last completions
    for (int64_t pending = pending_; pending != 0; pending = pending_) pending_.wait(pending);
  }

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }

  void start(const Collective& collective, comm::CompletionSink& sink, uint64_t token) override {
    if (aborted_) {
      sink.complete(token, core::Error{core::Error::Code::lost, "the communicator was aborted"});
      return;
    }
    // Of a reduce-scatter, which Gloo only has as an all-reduce and a slice: an all-to-all brings them, to be added up.
    at::Tensor parts;
    if (collective.kind == Collective::Kind::reduce_scatter) parts = take_scratch(collective);
    ++pending_;
    const auto end = [this, &sink, token, collective, parts](core::Status status) {
      if (parts.defined()) add_up(collective, parts, !status);
      sink.complete(token, std::move(status));
      if (--pending_ == 0) pending_.notify_all();
    };
    if (exchange_ && is_exchange(collective)) return exchange(collective, parts, end);
    try {
      launch(collective, parts)->getFuture()->addCallback([end](c10::ivalue::Future& future) {
        end(future.hasError() ? core::Status(c10d_error(future.exception_ptr())) : core::Status());
      });
    } catch (...) {
      end(c10d_error(std::current_exception()));
    }
  }

  void abort() override {
    if (aborted_.exchange(true)) return;
    if (exchange_) exchange_->abort();
    if (gloo_) return abort_connections(*gloo_);
    try {
      backend_->abort();
    } catch (const std::exception&) {
      // Some backends can not abort: what is under way then ends by its deadline.
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> launch(const Collective& what, at::Tensor& parts) {
    const std::chrono::milliseconds timeout(what.timeout_ms);
    switch (what.kind) {
      case Collective::Kind::reduce_scatter:
        return all_to_all(view(what.in, what.count * size(), what.type), parts.flatten(), timeout);
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
      case Collective::Kind::all_gather: return all_gather(what, timeout);
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

  // What is sent as messages between ranks: what goes both ways between two, and payloads that need not be full. All
  // other all-gathers of more ranks go around in one direction, and Gloo's are as good.
  bool is_exchange(const Collective& what) const {
    return what.kind == Collective::Kind::all_to_all || what.kind == Collective::Kind::reduce_scatter ||
           (what.kind == Collective::Kind::all_gather && (size() == 2 || what.used_bytes != nullptr));
  }

  void exchange(const Collective& what, const at::Tensor& parts, std::function<void(core::Status)> end) {
    const int64_t bytes = what.count * bytes_per_element(what.type);
    auto* const out = parts.defined() ? static_cast<std::byte*>(parts.data_ptr()) : what.out;
    const bool goes_around = what.kind == Collective::Kind::all_gather;
    const std::byte* const own = goes_around ? what.in : what.in + rank() * bytes;
    GlooExchange::Messages messages;
    if (bytes > 0) messages = goes_around ? around(what, out) : between_pairs(what, out);
    if (what.used_bytes != nullptr) {
      messages.length = [what](const at::Tensor& payload) {
        return comm::used_bytes(what, static_cast<const std::byte*>(payload.const_data_ptr()));
      };
    }
    const auto copy_own = [own, to = out + rank() * bytes, bytes] {
      if (own != to) std::memcpy(to, own, static_cast<size_t>(bytes));
    };
    exchange_->start(std::move(messages), std::chrono::milliseconds(what.timeout_ms), copy_own, std::move(end));
  }

  GlooExchange::Messages between_pairs(const Collective& what, std::byte* out) const {
    const int64_t bytes = what.count * bytes_per_element(what.type);
    GlooExchange::Messages messages;
    for (int distance = 1; distance < size(); ++distance) {  // not all to the same rank at once
      const int peer = (rank() + distance) % size();
      for (const at::Tensor& to : messages_of(what, out + peer * bytes)) messages.receives.push_back({peer, to});
      for (const at::Tensor& from : messages_of(what, what.in + peer * bytes)) messages.sends.push_back({peer, from});
    }
    return messages;
  }

  // A ring: each rank passes on to the next one what comes from the one before, so that a node's link carries each part
  // once.
  GlooExchange::Messages around(const Collective& what, std::byte* out) const {
    const int64_t bytes = what.count * bytes_per_element(what.type);
    const int next = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
    GlooExchange::Messages messages;
    for (const at::Tensor& from : messages_of(what, what.in)) messages.sends.push_back({next, from});
    for (int distance = 1; distance < size(); ++distance) {
      const int source = (rank() + size() - distance) % size();
      for (const at::Tensor& part : messages_of(what, out + source * bytes)) {
        if (distance + 1 < size()) {
          messages.sends.push_back({next, part, static_cast<int>(messages.receives.size())});
        }
        messages.receives.push_back({before, part});
      }
    }
    return messages;
  }

  // What a rank gives to another one: each payload by itself where some need not be full.
  static std::vector<at::Tensor> messages_of(const Collective& what, const std::byte* part) {
    const at::Tensor all = view(part, what.count, what.type);
    if (what.used_bytes == nullptr) return {all};
    return all.split(what.payload_bytes / bytes_per_element(what.type));
  }

  // Every rank's part for this one, a row each.
  at::Tensor take_scratch(const Collective& what) {
    const std::lock_guard lock(scratch_mutex_);
    at::Tensor scratch;
    if (!scratch_.empty()) {
      scratch = std::move(scratch_.back());
      scratch_.pop_back();
    }
    const int64_t bytes = what.count * size() * bytes_per_element(what.type);
    if (!scratch.defined() || scratch.numel() < bytes) scratch = at::empty({bytes}, at::kByte);
    return scratch.narrow(0, 0, bytes).view(scalar_type(what.type)).view({size(), what.count});
  }

  void add_up(const Collective& what, const at::Tensor& parts, bool failed) {
    if (!failed && what.count > 0) {
      const at::NoGradGuard no_grad;
      at::Tensor out = view(what.out, what.count, what.type);
      if (what.reduction == Collective::Reduction::max) {
        at::amax_out(out, parts, {0});
      } else {
        at::sum_out(out, parts, {0}, /*keepdim=*/false, parts.scalar_type());
      }
    }
    const std::lock_guard lock(scratch_mutex_);
    scratch_.push_back(at::empty({0}, at::kByte).set_(parts.storage()));
  }

  static c10d::ReduceOp reduction_of(const Collective& what) {
    return what.reduction == Collective::Reduction::max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  }

  static at::Tensor view(const std::byte* data, int64_t count, comm::WireType type) {
    return at::from_blob(const_cast<std::byte*>(data), {count}, at::TensorOptions(scalar_type(type)));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  // Where the backend is Gloo.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::optional<GlooExchange> exchange_;
  std::atomic<bool> aborted_ = false;
  std::atomic<int64_t> pending_ = 0;
  std::mutex scratch_mutex_;
  std::vector<at::Tensor> scratch_;  // of collectives that have ended, as bytes
};

}  // namespace

std::unique_ptr<comm::Communicator> make_c10d_communicator(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_unique<C10dCommunicator>(std::move(backend));
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const std::string& prefix,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    int64_t timeout_ms, int threads) {
  ignore_broken_pipes();
  auto options = make_gloo_options(std::chrono::milliseconds(timeout_ms));
  options->threads = threads;
  // It has a time limit of its own for peers, not for the store's answers.
  const auto backend = within(std::chrono::milliseconds(2 * timeout_ms), [prefix, store, rank, size, options] {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(prefix, store), rank,
                                                       size, options);
  });
  if (backend) return backend.value();
  throw core::Exception(
      {core::Error::Code::lost, "connecting the group \"" + prefix + "\" failed: " + backend.error().message});
}

}  // namespace gradtune
