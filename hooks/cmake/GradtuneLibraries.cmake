# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# Finds the libraries that gradtune is built with. One error names all that are missing, and their packages.

find_package(Threads REQUIRED)
set(_gradtune_missing)
foreach(_gradtune_library TBB hwy fmt nlohmann_json)
  find_package(${_gradtune_library} QUIET)
  if(NOT ${_gradtune_library}_FOUND)
    list(APPEND _gradtune_missing ${_gradtune_library})
  endif()
endforeach()
if(_gradtune_missing)
  list(JOIN _gradtune_missing ", " _gradtune_missing)
  message(FATAL_ERROR "CMake does not find these libraries that gradtune is built with: ${_gradtune_missing}
  Debian, Ubuntu:  apt-get install g++ python3-dev libtbb-dev libhwy-dev libfmt-dev nlohmann-json3-dev libgloo-dev libcli11-dev
  Fedora:          dnf install gcc-c++ python3-devel tbb-devel highway-devel fmt-devel json-devel gloo-devel cli11-devel
  conda-forge:     conda install cxx-compiler tbb-devel libhwy fmt nlohmann_json cli11, and the headers of Gloo from its sources
(The names are tested on Debian. A wheel from `./run wheel` needs none of these.)")
endif()
