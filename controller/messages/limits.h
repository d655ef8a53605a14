// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weir {

/// Largest gRPC message in either direction, in bytes. Everything that grows with a job stays below
/// it: 16384 buckets in a plan.
inline constexpr int kGrpcMessageBytesMax = 8 << 20;

}  // namespace weir
