# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(WEIR_RDMA QUIET librdmacm libibverbs)
if(WEIR_RDMA_FOUND)
  # Only the headers: rdma_core.cc opens the libraries at run time.
  add_library(weir_rdma_headers INTERFACE)
  target_include_directories(weir_rdma_headers SYSTEM INTERFACE ${WEIR_RDMA_INCLUDE_DIRS})
  set(transport_libraries weir_rdma_headers ${CMAKE_DL_LIBS})
else()
  set(transport_missing "librdmacm and libibverbs (Debian: librdmacm-dev libibverbs-dev)")
endif()
