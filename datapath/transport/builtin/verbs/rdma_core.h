// SPDX-License-Identifier: Apache-2.0
#pragma once
// rdma-core (librdmacm, libibverbs), opened when a verbs transport is first made. It is not linked,
// so libweir also loads where it is not installed, and always uses the copy whose drivers fit the
// host's kernel.

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "datapath/base/status.h"

// A macro that chooses between two functions by flags that are not used here.
#undef ibv_reg_mr

namespace weir::verbs {

// Functions that rdma-core's headers define inline are not listed.
#define WEIR_RDMA_FUNCTIONS(F)  \
  F(ibv_ack_async_event)        \
  F(ibv_ack_cq_events)          \
  F(ibv_alloc_pd)               \
  F(ibv_close_device)           \
  F(ibv_create_comp_channel)    \
  F(ibv_create_cq)              \
  F(ibv_create_qp)              \
  F(ibv_dealloc_pd)             \
  F(ibv_dereg_mr)               \
  F(ibv_destroy_comp_channel)   \
  F(ibv_destroy_cq)             \
  F(ibv_destroy_qp)             \
  F(ibv_event_type_str)         \
  F(ibv_free_device_list)       \
  F(ibv_get_async_event)        \
  F(ibv_get_cq_event)           \
  F(ibv_get_device_list)        \
  F(ibv_get_device_name)        \
  F(ibv_modify_qp)              \
  F(ibv_open_device)            \
  F(ibv_query_device)           \
  F(_ibv_query_gid_table)       \
  F(ibv_reg_mr)                 \
  F(ibv_wc_status_str)          \
  F(rdma_accept)                \
  F(rdma_ack_cm_event)          \
  F(rdma_bind_addr)             \
  F(rdma_connect)               \
  F(rdma_create_event_channel)  \
  F(rdma_create_id)             \
  F(rdma_destroy_event_channel) \
  F(rdma_destroy_id)            \
  F(rdma_disconnect)            \
  F(rdma_establish)             \
  F(rdma_event_str)             \
  F(rdma_get_cm_event)          \
  F(rdma_init_qp_attr)          \
  F(rdma_listen)                \
  F(rdma_reject)                \
  F(rdma_resolve_addr)          \
  F(rdma_resolve_route)

/// The functions of rdma-core by their own names.
struct RdmaCore {
#define WEIR_RDMA_MEMBER(name) decltype(&::name) name = nullptr;
  WEIR_RDMA_FUNCTIONS(WEIR_RDMA_MEMBER)
#undef WEIR_RDMA_MEMBER
};

/// Opens rdma-core at the first call; later calls return the same result. It stays open.
/// Thread-safe. kUnavailable: a library or one of its functions is missing; names it and says what
/// to install.
Status LoadRdmaCore();

/// The functions, after LoadRdmaCore has returned OK once. Thread-safe.
const RdmaCore& Rdma();

}  // namespace weir::verbs
