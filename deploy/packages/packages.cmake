# SPDX-License-Identifier: Apache-2.0
# Debian packages: `cpack -G DEB` in the build directory makes one per component. dpkg-shlibdeps
# finds the dependencies on libraries; all others are listed here.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME weir)
set(CPACK_PACKAGE_VENDOR Weir)
set(CPACK_PACKAGE_HOMEPAGE_URL "")
set(WEIR_PACKAGE_MAINTAINER "Weir developers <weir@example.org>" CACHE STRING "Maintainer of the packages")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${WEIR_PACKAGE_MAINTAINER})
set(CPACK_PACKAGE_CONTACT ${WEIR_PACKAGE_MAINTAINER})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_SET_DESTDIR ON)  # /etc is not below the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENTS_ALL)
set(debian ${CMAKE_CURRENT_SOURCE_DIR}/debian)

# Every package holds the changelog and the copyright.
set(changelog ${CMAKE_CURRENT_BINARY_DIR}/changelog.gz)
add_custom_command(OUTPUT ${changelog} COMMAND gzip -9nc ${debian}/changelog > ${changelog}
                   DEPENDS ${debian}/changelog VERBATIM)
add_custom_target(weir_changelog ALL DEPENDS ${changelog})
configure_file(${debian}/copyright copyright COPYONLY)

# weir_package(NAME SUMMARY TEXT [DEPENDS ...] [SECTION ...] [ALL] [SCRIPTS ...]): with ALL the
# package is for every architecture. SCRIPTS are files of debian/, NAME.postinst and so on, with
# @VARIABLES@ replaced.
macro(weir_package name summary text)
  cmake_parse_arguments(ARG "ALL" "DEPENDS;SECTION" "SCRIPTS" ${ARGN})
  list(APPEND CPACK_COMPONENTS_ALL ${name})
  string(TOUPPER ${name} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${text}")
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${ARG_DEPENDS}")
  if(ARG_SECTION)
    set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${ARG_SECTION})
  endif()
  if(ARG_ALL)
    set(CPACK_DEBIAN_${upper}_PACKAGE_ARCHITECTURE all)
    set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS OFF)
  endif()
  set(scripts)
  foreach(script ${ARG_SCRIPTS})
    configure_file(${debian}/${name}.${script} ${CMAKE_CURRENT_BINARY_DIR}/${name}/${script} @ONLY
                   FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                    WORLD_READ WORLD_EXECUTE)
    list(APPEND scripts ${CMAKE_CURRENT_BINARY_DIR}/${name}/${script})
  endforeach()
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA ${scripts})
  install(FILES ${changelog} ${CMAKE_CURRENT_BINARY_DIR}/copyright
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${name})
endmacro()

set(same "(= ${PROJECT_VERSION})")
if(TARGET weir-controller)
  weir_package(weir-common "steers the gradient traffic of training jobs: common files"
    "User, directories, example policies, Grafana dashboards and Prometheus rules
of Weir."
    ALL DEPENDS "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles"
    SCRIPTS postinst)
  weir_package(weir-controller "steers the gradient traffic of training jobs: controller"
    "Measures data-parallel training jobs through their nodes' agents and chooses
codec, ratio and collective of every gradient bucket. Serves gRPC, REST,
metrics and a web page."
    DEPENDS "weir-common ${same}" SCRIPTS conffiles postinst prerm postrm)
  weir_package(weir-agent "steers the gradient traffic of training jobs: agent of a node"
    "Measures this node's network and connects its training ranks to the
controller."
    DEPENDS "weir-common ${same}" SCRIPTS conffiles postinst prerm postrm)
  if(TARGET weir-aggregator)
    weir_package(weir-aggregator "steers the gradient traffic of training jobs: aggregator"
      "Sums the gradients that workers send in UDP packets, as a switch in the
network would."
      DEPENDS "weir-common ${same}" SCRIPTS conffiles postinst prerm postrm)
  endif()
  weir_package(weirctl "steers the gradient traffic of training jobs: operator's command"
    "Shows nodes, links, jobs and decisions of a Weir controller, explains and
pins choices, applies and checks policies, and simulates offline.")
endif()
weir_package(libweir0 "steers the gradient traffic of training jobs: datapath library"
  "Collectives inside a training process, whose compression a controller
steers live."
  SECTION libs SCRIPTS shlibs triggers)
# The transport verbs opens these libraries when it is used.
set(CPACK_DEBIAN_LIBWEIR0_PACKAGE_SUGGESTS "librdmacm1, ibverbs-providers")
weir_package(libweir-dev "steers the gradient traffic of training jobs: development files"
  "Header, pkg-config and CMake files of libweir."
  SECTION libdevel DEPENDS "libweir0 ${same}")
weir_package(python3-weir "steers the gradient traffic of training jobs: PyTorch package"
  "Communication hook for DistributedDataParallel and a process group for
torch.distributed."
  ALL SECTION python DEPENDS "python3 (>= 3.9), python3-torch, libweir0 (>= ${PROJECT_VERSION})"
  SCRIPTS postinst prerm)
include(CPack)
