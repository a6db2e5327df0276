# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# Functions that declare this project's targets: gradtune_library for the folders' libraries, gradtune_executable for
# programs.

# gradtune_common(TARGET): the language standard and the warnings of all targets.
function(gradtune_common target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)  # false alarms, GCC bug 105651
endfunction()

# _gradtune_links_libtorch(RESULT target...): true if one of the targets links LibTorch.
function(_gradtune_links_libtorch result)
  set(${result} FALSE PARENT_SCOPE)
  foreach(library IN LISTS ARGN)
    if(library STREQUAL "LibTorch::LibTorch")
      set(${result} TRUE PARENT_SCOPE)
      return()
    elseif(TARGET "${library}")
      get_target_property(own "${library}" INTERFACE_LINK_LIBRARIES)
      if(own)
        _gradtune_links_libtorch(links ${own})
        if(links)
          set(${result} TRUE PARENT_SCOPE)
          return()
        endif()
      endif()
    endif()
  endforeach()
endfunction()

# gradtune_precompile(TARGET library...): precompiles LibTorch's headers, which take 15 s to read, for targets that
# link it. GCC accepts a precompiled header only for code with the same position independence and optimization. So
# programs are compiled with -fPIC as well, and all of them with -O1, which halves the time again: they call fast
# code and have no hot loops of their own. GCC instantiates these headers' templates again for every object, which
# takes 11 s. So several sources are compiled to one object, and names in anonymous namespaces must differ within a
# library.
function(gradtune_precompile target)
  _gradtune_links_libtorch(links ${ARGN})
  if(NOT links)
    return()
  endif()
  if(NOT TARGET gradtune_libtorch_headers)
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/libtorch_headers.cc" CONTENT "// Carries the precompiled headers.\n")
    add_library(gradtune_libtorch_headers OBJECT "${PROJECT_BINARY_DIR}/libtorch_headers.cc")
    gradtune_common(gradtune_libtorch_headers)
    set_target_properties(gradtune_libtorch_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(gradtune_libtorch_headers PRIVATE -fPIC -O1)
    target_link_libraries(gradtune_libtorch_headers PRIVATE LibTorch::LibTorch)
    target_precompile_headers(gradtune_libtorch_headers PRIVATE
      <torch/torch.h> <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp> <torch/csrc/distributed/c10d/TCPStore.hpp>)
  endif()
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  if(NOT DEFINED CMAKE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
  endif()
  target_compile_options(${target} PRIVATE -fPIC -O1)
  target_precompile_headers(${target} REUSE_FROM gradtune_libtorch_headers)
endfunction()

# gradtune_library(NAME [NOT_INSTALLED] SOURCES file... [PUBLIC target...] [PRIVATE target...] [DEFINES name=value...])
# One static library for one folder. PUBLIC lists targets whose headers its own headers include; PRIVATE lists
# targets that only its .cc files use. Every gradtune target named must exist already: folders are added from the
# bottom up, so a dependency that points up fails here.
function(gradtune_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NOT_INSTALLED" "" "SOURCES;PUBLIC;PRIVATE;DEFINES")
  foreach(dependency IN LISTS arg_PUBLIC arg_PRIVATE)
    if(dependency MATCHES "^gradtune" AND NOT TARGET ${dependency})
      message(FATAL_ERROR "${name} depends on ${dependency}, which lies above it or does not exist")
    endif()
  endforeach()
  if(NOT arg_NOT_INSTALLED)
    set_property(GLOBAL APPEND PROPERTY gradtune_libraries ${name})
  endif()
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    gradtune_common(${name})
    target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
    target_compile_definitions(${name} PRIVATE ${arg_DEFINES})
    gradtune_precompile(${name} ${arg_PUBLIC} ${arg_PRIVATE})
    set(scope PUBLIC)
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_PUBLIC})
    set(scope INTERFACE)
  endif()
  target_include_directories(${name} ${scope} "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
  if(IS_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/include")  # public headers
    target_include_directories(${name} ${scope}
      "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  endif()
endfunction()

# gradtune_executable(NAME SOURCES file... [LIBS target...] [DEFINES name=value...])
function(gradtune_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS;DEFINES")
  add_executable(${name} ${arg_SOURCES})
  gradtune_common(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  target_compile_definitions(${name} PRIVATE ${arg_DEFINES})
  gradtune_precompile(${name} ${arg_LIBS})
endfunction()
