# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# Finds nvcc as GRADTUNE_WITH_CUDA says, and enables CUDA as a language if it is found. Only the kernels are CUDA
# code. They are in separate libraries with the CUDA runtime linked statically, so that programs that link them also
# run without a GPU and without CUDA. Without nvcc only these libraries are missing.
#
# The search order for nvcc is CMAKE_CUDA_COMPILER, CUDACXX, PATH, /usr/local/cuda, and a wheel in .venv that `./run
# build --cuda` installs. (The wheel nvidia-cuda-nvcc alone is not enough, because its dependencies then have other
# versions.)

set(GRADTUNE_WITH_CUDA AUTO CACHE STRING "Build the kernels for CUDA devices: AUTO (when nvcc is found), ON, OFF")
set(GRADTUNE_CUDA FALSE)

if(NOT GRADTUNE_WITH_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GRADTUNE_WITH_CUDA is '${GRADTUNE_WITH_CUDA}'; it may be AUTO, ON or OFF")
endif()
if(NOT GRADTUNE_WITH_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    file(GLOB _gradtune_wheels "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu1*/bin")
    find_program(GRADTUNE_NVCC nvcc PATHS /usr/local/cuda/bin ${_gradtune_wheels})
    mark_as_advanced(GRADTUNE_NVCC)
    if(GRADTUNE_NVCC)
      set(CMAKE_CUDA_COMPILER "${GRADTUNE_NVCC}")
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual CACHE STRING "What kernels are compiled for")
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE}")
    endif()
    set(GRADTUNE_CUDA TRUE)
  elseif(GRADTUNE_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GRADTUNE_WITH_CUDA is ON, but there is no nvcc: './run build --cuda' installs one")
  endif()
endif()

# gradtune_cuda(TARGET): the language options of kernels. Products and sums are rounded separately, as on the host.
# (The standard is passed as an option, because CMake 3.25 does not know the standards of nvcc 13.)
function(gradtune_cuda target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON CUDA_RUNTIME_LIBRARY None)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -fmad=false --expt-relaxed-constexpr>)
endfunction()

# gradtune_cuda_library(NAME SOURCES file... LIBS target...)
function(gradtune_cuda_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  set_property(GLOBAL APPEND PROPERTY gradtune_libraries ${name})
  add_library(${name} STATIC ${arg_SOURCES})
  gradtune_cuda(${name})
  target_link_libraries(${name} PUBLIC ${arg_LIBS})
endfunction()
