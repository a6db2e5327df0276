// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/nccl_library.h"

#include <dlfcn.h>

namespace gradtune::comm::nccl {

core::Error Library::error(Code code, const std::string& what, Comm comm) const {
  const auto kind = code == Code::remote_error ? core::Error::Code::lost : core::Error::Code::io;
  const char* const last = GetLastError(comm);
  const std::string more = last == nullptr || *last == '\0' ? "" : std::string(": ") + last;
  return {kind, std::string("NCCL says ") + GetErrorString(code) + " (at " + what + ")" + more};
}

core::Result<Library> load(const std::string& name) {
  Library library{};
  library.handle = std::shared_ptr<void>(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL), [](void* handle) {
    if (handle != nullptr) ::dlclose(handle);
  });
  if (library.handle == nullptr) {
    return core::Error{core::Error::Code::invalid,
                       "collectives of NCCL need the library " + name + ", which can not be loaded: " + ::dlerror()};
  }
  std::string missing;
  const auto find = [&](auto& function, const char* called) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library.handle.get(), called));
    if (function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(called);
  };
  find(library.GetVersion, "ncclGetVersion");
  find(library.GetUniqueId, "ncclGetUniqueId");
  find(library.CommInitRankConfig, "ncclCommInitRankConfig");
  find(library.CommGetAsyncError, "ncclCommGetAsyncError");
  find(library.CommFinalize, "ncclCommFinalize");
  find(library.CommDestroy, "ncclCommDestroy");
  find(library.CommAbort, "ncclCommAbort");
  find(library.GroupStart, "ncclGroupStart");
  find(library.GroupEnd, "ncclGroupEnd");
  find(library.AllReduce, "ncclAllReduce");
  find(library.ReduceScatter, "ncclReduceScatter");
  find(library.AllGather, "ncclAllGather");
  find(library.Reduce, "ncclReduce");
  find(library.Broadcast, "ncclBroadcast");
  find(library.Send, "ncclSend");
  find(library.Recv, "ncclRecv");
  find(library.GetErrorString, "ncclGetErrorString");
  find(library.GetLastError, "ncclGetLastError");
  if (missing.empty()) return library;
  return core::Error{core::Error::Code::invalid,
                     "the library " + name + " has no " + missing + "; NCCL 2.14 or a later one is needed"};
}

}  // namespace gradtune::comm::nccl
