// SPDX-License-Identifier: Apache-2.0
#pragma once
// The store in etcd, which several controllers share.

#include <memory>

#include "controller/store/etcd/etcd_client.h"
#include "controller/store/leadership.h"
#include "controller/store/store.h"

namespace weir {

/// Every write is a transaction that etcd only makes while this controller leads (its key has the
/// revision of the tenure); otherwise it is refused with kFailedPrecondition, without a call where
/// the tenure is over by this controller's own clock. A leader reads what a quorum has; a standby
/// reads what one member has, which needs no quorum and may be a moment old. Calls last at most
/// about 2 s; after one that failed, reads fail at once for a second. `leadership` outlives the
/// store. No call is made here, so that a controller can start while etcd is away.
std::unique_ptr<Store> OpenEtcdStore(const EtcdOptions& options, const Leadership& leadership,
                                     StoreLimits limits = {});

}  // namespace weir
