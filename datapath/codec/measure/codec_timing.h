// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time that each codec takes on this host, measured before its first use, so that a planner
// need not guess the time of a codec that has not run yet.

#include <cstddef>
#include <map>
#include <string>

#include "datapath/codec/device.h"

namespace weir {

/// seconds = per_element_s * elements + per_kept_s * kept elements (0 for codecs without a ratio).
struct CodecTime {
  double per_element_s = 0, per_kept_s = 0;
};

struct CodecTiming {
  CodecTime encode;  // with error feedback and statistics where the codec has them
  CodecTime decode;  // decode of one payload
};

/// The timings by codec name, without codecs that returned an error. Encodes and decodes 2^19
/// Gaussian floats (2 MiB, more than most second-level caches) a few times with every codec, which
/// takes about 0.05 s of one core. The first call of a process measures, under the load of that
/// moment; later calls return the same. Thread-safe.
const std::map<std::string, CodecTiming>& CodecTimings();

/// Returns whether buckets on the device are encoded and decoded there by this codec (the exchange
/// form and the collective may still prevent it), and not on the host after a copy. Thread-safe.
bool EncodesOn(const Device& device, const Codec& codec);

/// The same for gradients in the memory of a device.
struct DeviceCodecTimings {
  std::map<std::string, CodecTiming> on_host;    // with the copies of elements to and from the host
  std::map<std::string, CodecTiming> on_device;  // EncodesOn; with the copies of payloads
  double copy_out_s_per_byte = 0, copy_in_s_per_byte = 0;  // to the host's memory and from it
};

/// Measures with `elements` of them, in every call. Codecs that returned an error are left out; all
/// is empty if the device fails or its memory is full.
DeviceCodecTimings MeasureCodecsOn(Device& device, size_t elements);
/// The result of MeasureCodecsOn with 2^22 elements, measured by the first call of a process for
/// the device, which takes some 0.1 s on a GPU. Thread-safe.
const DeviceCodecTimings& CodecTimingsOn(Device& device);

}  // namespace weir
