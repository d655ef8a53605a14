#include "datapath/wire/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/wire/checksum_kernels.h"
#include "datapath/wire/frame.h"

namespace weir {
namespace {

std::vector<std::byte> Pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  Random random(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

// Lengths around every internal block size of XXH3.
const std::vector<size_t> kSizes = {0,    1,    3,    4,     8,     9,     16,  17,
                                    128,  129,  240,  241,   255,   256,   257, 1023,
                                    1024, 1025, 4096, 65535, 65536, 300001};

TEST(ChecksumTest, IsTheLowHalfOfXxh3) {
  // XXH3-64 of nothing, seed 0, is 0x2d06800538d394c2.
  EXPECT_EQ(Checksum({}), 0x38d394c2u);
}

class WideChecksumTest : public testing::TestWithParam<const ChecksumKernels*> {};

TEST_P(WideChecksumTest, AgreesWithTheBaseline) {
  const ChecksumKernels* wide = GetParam();
  if (wide == nullptr) GTEST_SKIP() << "this machine lacks the instructions";
  for (const size_t size : kSizes) {
    const auto bytes = Pattern(size);
    EXPECT_EQ(wide->hash(bytes.data(), size), BaselineChecksumKernels().hash(bytes.data(), size))
        << size;
    alignas(64) std::byte state[2][576];
    const ChecksumKernels* kernels[2] = {wide, &BaselineChecksumKernels()};
    for (int i = 0; i < 2; ++i) {
      kernels[i]->reset(state[i]);
      if (size > 0) kernels[i]->update(state[i], bytes.data(), size);
    }
    EXPECT_EQ(wide->digest(state[0]), BaselineChecksumKernels().digest(state[1])) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, WideChecksumTest,
                         testing::Values(Avx2ChecksumKernels(), Avx512ChecksumKernels()),
                         [](const auto& info) { return info.index == 0 ? "avx2" : "avx512"; });

TEST(ChecksumTest, StreamEqualsWholeHoweverItIsCut) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  ChecksumStream stream;
  for (const size_t size : kSizes) {
    const auto bytes = Pattern(size);
    for (int round = 0; round < 5; ++round) {
      stream.Reset();
      for (size_t at = 0; at < size;) {
        const size_t piece = 1 + random.Below(round == 0 ? 64 : size);
        const size_t taken = std::min(piece, size - at);
        stream.Update(std::span(bytes).subspan(at, taken));
        at += taken;
      }
      EXPECT_EQ(stream.Digest(), Checksum(bytes)) << size;
    }
  }
}

TEST(ChecksumTest, EveryFlippedBitShows) {
  auto bytes = Pattern(100);
  const uint32_t whole = Checksum(bytes);
  for (size_t bit = 0; bit < 800; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(Checksum(bytes), whole) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace weir
