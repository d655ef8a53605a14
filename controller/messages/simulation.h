// SPDX-License-Identifier: Apache-2.0
#pragma once
// Simulates the decision for a job that does not exist yet: the same solver runs on a snapshot made
// from a few numbers. The Simulate call uses it, and so does weirctl, offline.

#include "controller/solver/solver.h"
#include "datapath/base/status.h"
#include "weir/v1/admin.pb.h"
#include "weir/v1/rank.pb.h"

namespace weir {

/// The snapshot of a job with equal buckets spread evenly over the backward pass (two thirds of the
/// compute time), double-exponential gradients (gain(r) = r*(1 + L + L*L/2), L = ln(1/r)) and codec
/// costs typical of one core and, where gradients are on devices, of a GPU. kInvalidArgument names
/// the field that is out of range.
StatusOr<Snapshot> MakeSimulatedSnapshot(const v1::SimulateRequest& request,
                                         const v1::Capabilities& capabilities);

/// Whether the lists of codecs and collectives of `policy` leave any plan to a job of the usual
/// kind whose ranks are of this release or have `declared`. Bounds that depend on gradients are
/// left out, and names that such ranks do not have are no error. kFailedPrecondition says what
/// excludes what.
Status CheckLists(const Policy& policy, const v1::Capabilities& declared);

/// Decide on MakeSimulatedSnapshot under request.policy_source (empty: the default policy). Pure.
/// Errors: the snapshot's, ReadPolicy's and Decide's.
StatusOr<v1::SimulateResponse> Simulate(const v1::SimulateRequest& request,
                                        const v1::Capabilities& capabilities);

}  // namespace weir
