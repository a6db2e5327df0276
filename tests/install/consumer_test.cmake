# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D FROM=installed|build_tree -D BUILD=... -D WORK=... -D LIBTORCH=... -D LAUNCHER=... -P consumer_test.cmake
# Configures, builds and runs a copy of consumer/ in WORK against the package in BUILD, or installed from it into WORK/prefix.

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/consumer" DESTINATION "${WORK}")
set(package "${BUILD}")
if(FROM STREQUAL "installed")
  run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix")
  file(GLOB_RECURSE package "${WORK}/prefix/*/gradtuneConfig.cmake")
  get_filename_component(package "${package}" DIRECTORY)
endif()
run(${CMAKE_COMMAND} -G Ninja -S "${WORK}/consumer" -B "${WORK}/build" -D gradtune_DIR=${package} -D Torch_DIR=${LIBTORCH}
  -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
run(${CMAKE_COMMAND} --build "${WORK}/build")
run("${WORK}/build/consumer")
