// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A library with NCCL's functions that works without a GPU, between processes. It uses memory of the host and
// sockets, and FakeNcclStream replaces CUDA's streams. Like NCCL it never gives up by itself: a collective that
// other ranks do not join waits until the communicator is aborted. Calls do not block, and are in progress when they
// return.
//
// All ranks send their input to a hub, which is a thread of rank 0, and receive the inputs of all.
#include "tests/engine/comm/fake_nccl.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/nccl_library.h"
#include "engine/core/float16.h"

namespace {

using gradtune::comm::FakeNcclStream;
using namespace gradtune::comm::nccl;

constexpr Code kCudaError{1}, kInvalidArgument{4}, kInvalidUsage{5};
constexpr int kPollMs = 5;

using Bytes = std::vector<std::byte>;

size_t bytes_of(Type type) {
  switch (type) {
    case Type::u8: return 1;
    case Type::f16:
    case Type::bf16: return 2;
    case Type::f32: return 4;
    case Type::f64: return 8;
  }
  return 0;
}

// --- sockets ---------------------------------------------------------------------------------------------------------

// Moves all bytes. Returns false once the other end has closed, or this end wants to stop.
template <typename Move>
bool move_all(int socket, short event, size_t bytes, const std::atomic<bool>& ends, const Move& move) {
  for (size_t at = 0; at < bytes;) {
    if (ends) return false;
    pollfd waits{socket, event, 0};
    if (poll(&waits, 1, kPollMs) == 0) continue;
    const ssize_t moved = move(at);
    if (moved <= 0) return false;
    at += static_cast<size_t>(moved);
  }
  return true;
}

bool send_all(int socket, const void* data, size_t bytes, const std::atomic<bool>& ends) {
  return move_all(socket, POLLOUT, bytes, ends, [&](size_t at) {
    return send(socket, static_cast<const std::byte*>(data) + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

bool receive_all(int socket, void* data, size_t bytes, const std::atomic<bool>& ends) {
  return move_all(socket, POLLIN, bytes, ends, [&](size_t at) {
    return recv(socket, static_cast<std::byte*>(data) + at, bytes - at, MSG_DONTWAIT);
  });
}

bool send_blob(int socket, const Bytes& blob, const std::atomic<bool>& ends) {
  const uint64_t size = blob.size();
  return send_all(socket, &size, sizeof size, ends) && send_all(socket, blob.data(), blob.size(), ends);
}

bool receive_blob(int socket, Bytes& blob, const std::atomic<bool>& ends) {
  uint64_t size = 0;
  if (!receive_all(socket, &size, sizeof size, ends)) return false;
  blob.resize(size);
  return receive_all(socket, blob.data(), size, ends);
}

sockaddr_un address_of(const char* name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t n = std::strlen(name);
  std::memcpy(address.sun_path + 1, name, n);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

// The listening socket of rank 0 for each id.
std::map<std::string, int>& listening() {
  static std::map<std::string, int> all;
  return all;
}

class Hub {
 public:
  Hub(int listener, int size)
      : listener_(listener), sockets_(static_cast<size_t>(size), -1), thread_([this] { work(); }) {}
  ~Hub() {
    ends_ = true;
    thread_.join();
    for (const int socket : sockets_) {
      if (socket >= 0) close(socket);
    }
    close(listener_);
  }

 private:
  void work() {
    for (size_t known = 0; known < sockets_.size() && !ends_;) {
      pollfd waits{listener_, POLLIN, 0};
      if (poll(&waits, 1, kPollMs) == 0) continue;
      const int socket = accept(listener_, nullptr, nullptr);
      int rank = 0;
      if (!receive_all(socket, &rank, sizeof rank, ends_)) return;
      sockets_[static_cast<size_t>(rank)] = socket;
      ++known;
    }
    const Bytes all_here(1);
    for (const int socket : sockets_) send_blob(socket, all_here, ends_);
    while (!ends_) {
      std::vector<Bytes> given(sockets_.size());
      bool is_whole = true;
      for (size_t r = 0; r < sockets_.size(); ++r) is_whole = is_whole && receive_blob(sockets_[r], given[r], ends_);
      if (!is_whole) break;
      for (const int socket : sockets_) {
        for (const Bytes& each : given) send_blob(socket, each, ends_);
      }
    }
    for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);  // a rank is gone
  }

  const int listener_;
  std::vector<int> sockets_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// --- collectives -----------------------------------------------------------------------------------------------------

enum class Kind : uint32_t { all_reduce, reduce_scatter, all_gather, reduce, broadcast, group };

// The parameters that all ranks have to share.
struct Head {
  Kind kind{};
  Type type{};
  Reduction reduction{};
  int root = 0;
  uint64_t count = 0;
};

struct Message {
  bool is_send;
  int peer;
  Type type;
  uint64_t count;
  const std::byte* in;
  std::byte* out;
};

struct Call {
  Head head{};
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<Message> messages = {};
};

template <typename T, typename Load, typename Store>
void reduce_as(std::byte* to, const std::byte* from, size_t n, Reduction reduction, Load load, Store store) {
  for (size_t i = 0; i < n; ++i) {
    T a, b;
    std::memcpy(&a, to + i * sizeof a, sizeof a);
    std::memcpy(&b, from + i * sizeof b, sizeof b);
    const auto x = load(a), y = load(b);
    a = store(reduction == Reduction::max ? std::max(x, y) : x + y);
    std::memcpy(to + i * sizeof a, &a, sizeof a);
  }
}

void reduce_into(std::byte* to, const std::byte* from, const Head& head) {
  using gradtune::core::Bf16;
  using gradtune::core::F16;
  const auto same = [](auto x) { return x; };
  const size_t n = head.count;
  switch (head.type) {
    case Type::u8:
      return reduce_as<uint8_t>(to, from, n, head.reduction, same, [](int x) { return static_cast<uint8_t>(x); });
    case Type::f32: return reduce_as<float>(to, from, n, head.reduction, same, same);
    case Type::f64: return reduce_as<double>(to, from, n, head.reduction, same, same);
    case Type::f16: return reduce_as<uint16_t>(to, from, n, head.reduction, &F16::load, &F16::store);
    case Type::bf16: return reduce_as<uint16_t>(to, from, n, head.reduction, &Bf16::load, &Bf16::store);
  }
}

}  // namespace

namespace gradtune::comm::nccl {

struct CommOfNccl {
  struct State {
    int rank = 0, size = 0, socket = -1;
    std::atomic<bool> aborted = false;
    std::atomic<Code> code = Code::in_progress;
    std::atomic<int> asked = 0;  // number of further calls that are in progress

    void fail(Code what) {
      if (!aborted) code = what;
      while (!aborted) std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));  // a kernel spins as well
    }
    void run(const Call& call, FakeNcclStream& stream);
    bool exchange(const Bytes& given, std::vector<Bytes>& all);
  };
  std::shared_ptr<State> state = std::make_shared<State>();
  std::unique_ptr<Hub> hub;
  std::thread connects;
};

}  // namespace gradtune::comm::nccl

namespace {

using State = CommOfNccl::State;

void append(Bytes& bytes, const void* data, size_t n) {
  const auto* const from = static_cast<const std::byte*>(data);
  bytes.insert(bytes.end(), from, from + n);
}

}  // namespace

bool State::exchange(const Bytes& given, std::vector<Bytes>& all) {
  all.resize(static_cast<size_t>(size));
  bool went = send_blob(socket, given, aborted);
  for (Bytes& each : all) went = went && receive_blob(socket, each, aborted);
  if (!went) fail(Code::remote_error);
  return went;
}

void State::run(const Call& call, FakeNcclStream& stream) {
  if (aborted) return;
  const Head& head = call.head;
  const size_t bytes = head.count * bytes_of(head.type);
  const bool is_scatter = head.kind == Kind::reduce_scatter;
  Bytes given;
  append(given, &head, sizeof head);
  if (head.kind != Kind::group)
    append(given, stream.reach(call.in), is_scatter ? bytes * static_cast<size_t>(size) : bytes);
  for (const Message& message : call.messages) {
    if (!message.is_send) continue;
    const uint64_t n = message.count * bytes_of(message.type);
    append(given, &message.peer, sizeof message.peer);
    append(given, &n, sizeof n);
    append(given, stream.reach(message.in), n);
  }
  std::vector<Bytes> all;
  if (!exchange(given, all)) return;
  for (const Bytes& each : all) {
    if (std::memcmp(each.data(), &head, sizeof head) != 0) return fail(kInvalidUsage);
  }
  const auto part = [&](size_t r, size_t at) { return all[r].data() + sizeof head + at; };
  const auto sum = [&](std::byte* to, size_t at) {
    Bytes result(part(0, at), part(0, at) + bytes);
    for (size_t r = 1; r < all.size(); ++r) reduce_into(result.data(), part(r, at), head);
    std::copy(result.begin(), result.end(), to);
  };
  const auto me = static_cast<size_t>(rank);
  switch (head.kind) {
    case Kind::all_reduce: return sum(stream.reach(call.out), 0);
    case Kind::reduce_scatter: return sum(stream.reach(call.out), me * bytes);
    case Kind::all_gather:
      for (size_t r = 0; r < all.size(); ++r) std::copy_n(part(r, 0), bytes, stream.reach(call.out) + r * bytes);
      return;
    case Kind::reduce:
      if (rank == head.root) sum(stream.reach(call.out), 0);
      return;
    case Kind::broadcast: std::copy_n(part(static_cast<size_t>(head.root), 0), bytes, stream.reach(call.out)); return;
    case Kind::group: break;
  }
  std::vector<size_t> read(all.size(), sizeof head);
  for (const Message& message : call.messages) {
    if (message.is_send) continue;
    const Bytes& from = all[static_cast<size_t>(message.peer)];
    size_t& at = read[static_cast<size_t>(message.peer)];
    bool found = false;
    while (!found && at < from.size()) {
      int to = 0;
      uint64_t n = 0;
      std::memcpy(&to, from.data() + at, sizeof to);
      std::memcpy(&n, from.data() + at + sizeof to, sizeof n);
      at += sizeof to + sizeof n;
      found = to == rank;
      if (found && n != message.count * bytes_of(message.type)) return fail(kInvalidUsage);
      if (found) std::copy_n(from.data() + at, n, stream.reach(message.out));
      at += n;
    }
    if (!found) return fail(kInvalidUsage);
  }
}

namespace {

Code enqueue(Comm comm, void* stream, Call call) {
  const std::shared_ptr<State>& state = comm->state;
  if (state->code != Code::success) return kInvalidUsage;  // the communicator is not connected, or has failed
  state->asked = 2;
  auto* const asked = static_cast<FakeNcclStream*>(stream);
  asked->ask([state, call = std::move(call), asked] { state->run(call, *asked); });
  return Code::in_progress;
}

thread_local bool in_group = false;
thread_local Call group;
thread_local Comm group_comm = nullptr;
thread_local void* group_stream = nullptr;

Code add(Comm comm, void* stream, const Message& message) {
  if (!in_group || message.peer < 0 || message.peer >= comm->state->size) return kInvalidArgument;
  group_comm = comm;
  group_stream = stream;
  group.messages.push_back(message);
  return Code::success;
}

const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

}  // namespace

extern "C" {

Code ncclCommAbort(Comm comm);

Code ncclGetVersion(int* version) {
  *version = 22809;
  return Code::success;
}

Code ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> number = 0;
  const std::string name = "fake-nccl-" + std::to_string(getpid()) + "-" + std::to_string(number++);
  *id = {};
  name.copy(id->bytes, sizeof id->bytes - 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = address_of(id->bytes, length);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 || listen(listener, 64) != 0)
    return Code{2};
  listening()[name] = listener;
  return Code::success;
}

Code ncclCommInitRankConfig(Comm* made, int size, UniqueId id, int rank, Config* config) {
  if (std::getenv("FAKE_NCCL_WITHOUT_GPU") != nullptr) return kCudaError;
  const bool is_known = config->size == 24 && config->magic == 0xcafebeef && config->version == 21400;
  if (!is_known || config->blocking != 0 || rank < 0 || rank >= size) return kInvalidArgument;
  auto* const comm = new CommOfNccl;
  comm->state->rank = rank;
  comm->state->size = size;
  if (rank == 0) comm->hub = std::make_unique<Hub>(listening().at(id.bytes), size);
  comm->connects = std::thread([state = comm->state, id] {
    state->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = 0;
    const sockaddr_un address = address_of(id.bytes, length);
    Bytes all_here;
    if (connect(state->socket, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
        send_all(state->socket, &state->rank, sizeof state->rank, state->aborted) &&
        receive_blob(state->socket, all_here, state->aborted)) {
      state->code = Code::success;
    } else if (!state->aborted) {
      state->code = Code::remote_error;
    }
  });
  *made = comm;
  return Code::in_progress;
}

Code ncclCommGetAsyncError(Comm comm, Code* code) {
  State& state = *comm->state;
  *code = state.code == Code::success && state.asked > 0 ? Code::in_progress : state.code.load();
  if (state.asked > 0) --state.asked;
  return Code::success;
}

// Each rank comes here after it has received everything.
Code ncclCommFinalize(Comm comm) {
  comm->connects.join();
  comm->state->code = Code::in_progress;
  comm->connects = std::thread([state = comm->state] {
    Bytes each;
    bool goes_on = send_blob(state->socket, Bytes(1), state->aborted);
    for (int r = 0; goes_on && r < state->size; ++r) goes_on = receive_blob(state->socket, each, state->aborted);
    state->code = Code::success;
  });
  return Code::in_progress;
}

Code ncclCommDestroy(Comm comm) { return ncclCommAbort(comm); }

Code ncclCommAbort(Comm comm) {
  comm->state->aborted = true;
  comm->connects.join();
  if (comm->state->socket >= 0) shutdown(comm->state->socket, SHUT_RDWR);
  delete comm;
  return Code::success;
}

Code ncclGroupStart() {
  in_group = true;
  group = {.head = {.kind = Kind::group}};
  return Code::success;
}

Code ncclGroupEnd() {
  in_group = false;
  if (group_comm == nullptr) return Code::success;  // an empty group
  return enqueue(std::exchange(group_comm, nullptr), group_stream, std::move(group));
}

Code ncclAllReduce(const void* in, void* out, size_t count, Type type, Reduction reduction, Comm comm, void* stream) {
  return enqueue(comm, stream, {{Kind::all_reduce, type, reduction, 0, count}, bytes(in), bytes(out)});
}
Code ncclReduceScatter(const void* in, void* out, size_t count, Type type, Reduction reduction, Comm comm,
                       void* stream) {
  return enqueue(comm, stream, {{Kind::reduce_scatter, type, reduction, 0, count}, bytes(in), bytes(out)});
}
Code ncclAllGather(const void* in, void* out, size_t count, Type type, Comm comm, void* stream) {
  return enqueue(comm, stream, {{Kind::all_gather, type, Reduction::sum, 0, count}, bytes(in), bytes(out)});
}
Code ncclReduce(const void* in, void* out, size_t count, Type type, Reduction reduction, int root, Comm comm,
                void* stream) {
  return enqueue(comm, stream, {{Kind::reduce, type, reduction, root, count}, bytes(in), bytes(out)});
}
Code ncclBroadcast(const void* in, void* out, size_t count, Type type, int root, Comm comm, void* stream) {
  return enqueue(comm, stream, {{Kind::broadcast, type, Reduction::sum, root, count}, bytes(in), bytes(out)});
}
Code ncclSend(const void* in, size_t count, Type type, int peer, Comm comm, void* stream) {
  return add(comm, stream, {true, peer, type, count, bytes(in), nullptr});
}
Code ncclRecv(void* out, size_t count, Type type, int peer, Comm comm, void* stream) {
  return add(comm, stream, {false, peer, type, count, nullptr, bytes(out)});
}

const char* ncclGetErrorString(Code code) {
  switch (static_cast<int>(code)) {
    case 1: return "unhandled cuda error";
    case 4: return "invalid argument";
    case 5: return "invalid usage";
    case 6: return "remote process exited or there was a network error";
    default: return "unknown";
  }
}

const char* ncclGetLastError(Comm) {
  return std::getenv("FAKE_NCCL_WITHOUT_GPU") != nullptr ? "no CUDA-capable device is detected" : "";
}

}  // extern "C"
