// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of NCCL's C interface (nccl.h of 2.14 and later) that gradtune uses, as functions of a library that is
// loaded at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "engine/core/result.h"

namespace gradtune::comm::nccl {

// Values and layouts are those of NCCL.
enum class Code : int { success = 0, remote_error = 6, in_progress = 7 };  // all other values are errors
enum class Type : int { u8 = 1, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class Reduction : int { sum = 0, max = 2 };

struct UniqueId {
  char bytes[128];
};

// The layout of version 2.14, which introduced calls that do not block; the library reads only the fields of that
// version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

using Comm = struct CommOfNccl*;

struct Library {
  Code (*GetVersion)(int* version);
  Code (*GetUniqueId)(UniqueId* id);
  Code (*CommInitRankConfig)(Comm* comm, int size, UniqueId id, int rank, Config* config);
  Code (*CommGetAsyncError)(Comm comm, Code* code);
  Code (*CommFinalize)(Comm comm);
  Code (*CommDestroy)(Comm comm);
  Code (*CommAbort)(Comm comm);
  Code (*GroupStart)();
  Code (*GroupEnd)();
  Code (*AllReduce)(const void* in, void* out, size_t count, Type type, Reduction reduction, Comm comm, void* stream);
  Code (*ReduceScatter)(const void* in, void* out, size_t count, Type type, Reduction reduction, Comm comm,
                        void* stream);
  Code (*AllGather)(const void* in, void* out, size_t count, Type type, Comm comm, void* stream);
  Code (*Reduce)(const void* in, void* out, size_t count, Type type, Reduction reduction, int root, Comm comm,
                 void* stream);
  Code (*Broadcast)(const void* in, void* out, size_t count, Type type, int root, Comm comm, void* stream);
  Code (*Send)(const void* in, size_t count, Type type, int peer, Comm comm, void* stream);
  Code (*Recv)(void* out, size_t count, Type type, int peer, Comm comm, void* stream);
  const char* (*GetErrorString)(Code code);
  const char* (*GetLastError)(Comm comm);

  std::shared_ptr<void> handle;

  // "NCCL says unhandled cuda error (at AllReduce): ..."
  core::Error error(Code code, const std::string& what, Comm comm) const;
};

core::Result<Library> load(const std::string& name);

}  // namespace gradtune::comm::nccl
