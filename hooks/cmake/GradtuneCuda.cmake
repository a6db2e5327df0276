# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# Finds nvcc as GRADTUNE_WITH_CUDA says, and makes CUDA a language then. Kernels are the only CUDA there is: they are in a
# library of their own, with the CUDA runtime linked statically, so that what links it runs where there is no GPU and no
# CUDA as well. Without nvcc nothing is missing but that library.
#
# nvcc is looked for as CMAKE_CUDA_COMPILER, CUDACXX, in PATH, in /usr/local/cuda and as a wheel in .venv, which
# `./run build --cuda` installs. (The wheel nvidia-cuda-nvcc alone does not do: its parts are of other versions then.)

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
    set(GRADTUNE_CUDA TRUE)
  elseif(GRADTUNE_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GRADTUNE_WITH_CUDA is ON, but there is no nvcc: './run build --cuda' installs one")
  endif()
endif()
