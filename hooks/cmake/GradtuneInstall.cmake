# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs the public headers, the libraries and a CMake package, so that find_package(gradtune) gives
# gradtune::gradtune. The build tree is a package too: gradtune_DIR may name it.

include(CMakePackageConfigHelpers)
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/gradtune")

get_property(libraries GLOBAL PROPERTY gradtune_libraries)
install(TARGETS ${libraries} EXPORT gradtune ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET gradtune_program)
  install(TARGETS gradtune_program)
endif()
install(DIRECTORY hooks/include/gradtune DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT gradtune NAMESPACE gradtune:: FILE gradtuneTargets.cmake DESTINATION "${package_folder}")
export(EXPORT gradtune NAMESPACE gradtune:: FILE "${PROJECT_BINARY_DIR}/gradtuneTargets.cmake")

configure_package_config_file(hooks/cmake/gradtuneConfig.cmake.in "${PROJECT_BINARY_DIR}/gradtuneConfig.cmake"
  INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gradtuneConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
configure_file(hooks/cmake/FindLibTorch.cmake "${PROJECT_BINARY_DIR}/FindLibTorch.cmake" COPYONLY)
install(FILES
  "${PROJECT_BINARY_DIR}/gradtuneConfig.cmake"
  "${PROJECT_BINARY_DIR}/gradtuneConfigVersion.cmake"
  hooks/cmake/FindLibTorch.cmake
  DESTINATION "${package_folder}")
