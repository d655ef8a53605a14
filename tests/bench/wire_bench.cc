// SPDX-License-Identifier: Apache-2.0
// The cost of protecting a frame, by payload size: its checksum, its tag (GMAC), and its tag with
// an encrypted payload (GCM), on the sender's side and on the receiver's. memcpy is the peer. Rows
// of long payloads go through memory, as payloads on their way to and from the kernel do.

#include <benchmark/benchmark.h>

#include <array>
#include <cstring>
#include <vector>

#include "datapath/wire/frame.h"
#include "datapath/wire/frame_seal.h"

namespace weir {
namespace {

constexpr int64_t kBytesMin = 1 << 10, kBytesMax = 64 << 20;

std::vector<std::byte> Payload(const benchmark::State& state) {
  std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

FrameKey Key() {
  FrameKey key;
  key.key[0] = std::byte{1};
  return key;
}

void Memcpy(benchmark::State& state) {
  const std::vector<std::byte> from = Payload(state);
  std::vector<std::byte> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// Checksums of header and payload, as both sides compute them.
void Checksums(benchmark::State& state) {
  const std::vector<std::byte> payload = Payload(state);
  FrameHeader header;
  std::array<std::byte, kFrameHeaderBytes> wire;
  for (auto _ : state) {
    header.payload_checksum = Checksum(payload);
    EncodeFrameHeader(header, wire);
    benchmark::DoNotOptimize(wire);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void Seal(benchmark::State& state, bool encrypts) {
  const std::vector<std::byte> payload = Payload(state);
  std::vector<std::byte> sealed(encrypts ? payload.size() : 0);
  FrameSealer sealer = *FrameSealer::Create(Key(), encrypts);
  std::array<std::byte, kFrameHeaderBytes> wire;
  for (auto _ : state) {
    EncodeFrameHeader({}, wire, FrameCheck::kTag);
    FrameTag tag;
    sealer.Seal(wire, payload, sealed, &tag);
    benchmark::DoNotOptimize(tag);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// The tag does not match, which takes the same time.
void Open(benchmark::State& state, bool encrypted) {
  std::vector<std::byte> payload = Payload(state);
  FrameOpener opener = *FrameOpener::Create(Key(), encrypted);
  std::array<std::byte, kFrameHeaderBytes> wire;
  EncodeFrameHeader({}, wire, FrameCheck::kTag);
  const FrameTag tag = {};
  for (auto _ : state) {
    opener.Begin(wire);
    opener.Update(payload);
    benchmark::DoNotOptimize(opener.Finish(tag));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK(Memcpy)->RangeMultiplier(16)->Range(kBytesMin, kBytesMax);
BENCHMARK(Checksums)->RangeMultiplier(16)->Range(kBytesMin, kBytesMax);
BENCHMARK_CAPTURE(Seal, Gmac, false)->RangeMultiplier(16)->Range(kBytesMin, kBytesMax);
BENCHMARK_CAPTURE(Open, Gmac, false)->RangeMultiplier(16)->Range(kBytesMin, kBytesMax);
BENCHMARK_CAPTURE(Seal, Gcm, true)->RangeMultiplier(16)->Range(kBytesMin, kBytesMax);
BENCHMARK_CAPTURE(Open, Gcm, true)->RangeMultiplier(16)->Range(kBytesMin, kBytesMax);

}  // namespace
}  // namespace weir

BENCHMARK_MAIN();
