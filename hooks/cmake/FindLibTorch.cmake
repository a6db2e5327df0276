# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# Finds the CPU side of LibTorch, in a wheel or in the C++ archive, and defines LibTorch::LibTorch.
#
# find_package(Torch) is not used: for a LibTorch built with CUDA it fails on a machine without the CUDA toolkit,
# although nothing here needs the toolkit. So libtorch_cpu and libc10 are imported directly. They export their own
# copy of Gloo, whose headers no wheel ships. The Gloo headers of any system (Debian: libgloo-dev) serve, but the
# system's library must never be linked as well.
#
# The search order is GRADTUNE_LIBTORCH, Torch_DIR, CMAKE_PREFIX_PATH (each as a variable, the last two also from the
# environment), then `.venv` of the source tree, then LibTorch_LAST_RESORT. An installed package sets the last one to
# the folder that its build used. The folder is the one with include/ and lib/; share/cmake/Torch in it is accepted
# too.
#
# Sets LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT.

include(FindPackageHandleStandardArgs)

function(_libtorch_root_of folder result)
  foreach(root "${folder}" "${folder}/torch" "${folder}/../.." "${folder}/../../..")
    if(EXISTS "${root}/include/torch/csrc/api/include/torch/torch.h")
      get_filename_component(root "${root}" REALPATH)
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

function(_libtorch_search result)
  # These two name exactly one LibTorch. If it is missing, another one would hide the mistake.
  set(named "${GRADTUNE_LIBTORCH}" "${Torch_DIR}" "$ENV{Torch_DIR}")
  foreach(folder IN LISTS named)
    if(folder AND NOT folder MATCHES "-NOTFOUND$")
      _libtorch_root_of("${folder}" root)
      if(NOT root)
        message(FATAL_ERROR "GRADTUNE_LIBTORCH or Torch_DIR is '${folder}', but no LibTorch is there")
      endif()
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" prefixes)
  file(GLOB virtual_environment "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  foreach(folder IN LISTS CMAKE_PREFIX_PATH prefixes virtual_environment LibTorch_LAST_RESORT)
    _libtorch_root_of("${folder}" root)
    if(root)
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

_libtorch_search(LibTorch_ROOT)
if(LibTorch_ROOT)
  set(_lib "${LibTorch_ROOT}/lib")
  find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS "${_lib}" NO_DEFAULT_PATH NO_CACHE)
  find_library(LibTorch_C10_LIBRARY c10 PATHS "${_lib}" NO_DEFAULT_PATH NO_CACHE)
  find_path(LibTorch_GLOO_INCLUDE_DIR gloo/algorithm.h HINTS "${LibTorch_ROOT}/include" NO_CACHE)
  foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_ROOT}/include/${_header}")
      file(READ "${LibTorch_ROOT}/include/${_header}" _text)
      if(_text MATCHES "TORCH_VERSION_MAJOR ([0-9]+)")
        set(LibTorch_VERSION "${CMAKE_MATCH_1}")
        string(REGEX MATCH "TORCH_VERSION_MINOR ([0-9]+)" _ "${_text}")
        string(APPEND LibTorch_VERSION ".${CMAKE_MATCH_1}")
        string(REGEX MATCH "TORCH_VERSION_PATCH ([0-9]+)" _ "${_text}")
        string(APPEND LibTorch_VERSION ".${CMAKE_MATCH_1}")
      endif()
    endif()
  endforeach()
endif()

set(_libtorch_missing "LibTorch needs Torch_DIR, CMAKE_PREFIX_PATH or .venv, and the headers of Gloo (Debian: libgloo-dev)")
if(LibTorch_LAST_RESORT)
  string(APPEND _libtorch_missing ". It was ${LibTorch_LAST_RESORT} when gradtune was built")
endif()
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_GLOO_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${_libtorch_missing}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  # NDEBUG is part of LibTorch's ABI: without it at::RecordFunction has one more member.
  set(_definitions NDEBUG USE_DISTRIBUTED USE_C10D_GLOO)
  file(STRINGS "${LibTorch_ROOT}/share/cmake/Torch/TorchConfig.cmake" _abi REGEX "_GLIBCXX_USE_CXX11_ABI=[01]")
  if(_abi MATCHES "(_GLIBCXX_USE_CXX11_ABI=[01])")
    list(APPEND _definitions "${CMAKE_MATCH_1}")  # older wheels; newer ones have the compiler's default and do not say so
  endif()

  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_C10_LIBRARY}")
  add_library(LibTorch::LibTorch SHARED IMPORTED)
  set_target_properties(LibTorch::LibTorch PROPERTIES
    IMPORTED_LOCATION "${LibTorch_CPU_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_ROOT}/include;${LibTorch_ROOT}/include/torch/csrc/api/include;${LibTorch_GLOO_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS "${_definitions}"
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
  # The wheel's libtorch_cpu needs CUDA libraries beside it. It finds them itself at run time, but the linker needs
  # their paths.
  file(GLOB _nvidia LIST_DIRECTORIES true "${LibTorch_ROOT}/../nvidia/*/lib")
  foreach(_folder IN LISTS _nvidia)
    target_link_options(LibTorch::LibTorch INTERFACE "LINKER:-rpath-link,${_folder}")
  endforeach()
endif()
