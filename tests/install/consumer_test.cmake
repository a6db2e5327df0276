# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D FROM=installed|build_tree -D BUILD=... -D WORK=... -D LIBTORCH=... -D LAUNCHER=... -P consumer_test.cmake
# Configures, builds and runs a copy of consumer/ in WORK against the package in BUILD, or installed from it into
# WORK/prefix.

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/consumer" DESTINATION "${WORK}")
if(FROM STREQUAL "installed")
  # As in README, without the path of LibTorch: it is at the same place as when gradtune was built.
  run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix")
  set(packages -D "CMAKE_PREFIX_PATH=${WORK}/prefix")
else()
  set(packages -D "gradtune_DIR=${BUILD}" -D "Torch_DIR=${LIBTORCH}")
endif()
run(${CMAKE_COMMAND} -E env --unset=Torch_DIR --unset=CMAKE_PREFIX_PATH
  ${CMAKE_COMMAND} -G Ninja -S "${WORK}/consumer" -B "${WORK}/build" ${packages} -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
run(${CMAKE_COMMAND} --build "${WORK}/build")
run("${WORK}/build/consumer")
