// SPDX-License-Identifier: Apache-2.0
// The kernels of Rice codes against loops that do the same bit by bit, on every SIMD target.
#include "datapath/codec/kernels/index.h"

#include <gtest/gtest.h>

#include <vector>

#include "datapath/base/random.h"
#include "tests/support/every_target.h"

namespace weir {
namespace {

TEST(IndexKernelsTest, FindOnesFindsEveryOneAndStopsBehindTheLastAskedFor) {
  Random random(1);
  for (const double density : {0.0, 0.02, 0.5, 0.97, 1.0}) {
    for (const size_t size : {0, 1, 7, 8, 9, 40, 333}) {
      std::vector<uint8_t> bytes(size);
      std::vector<size_t> all;
      for (size_t bit = 0; bit < 8 * size; ++bit) {
        if (random.Uniform() >= density) continue;
        bytes[bit / 8] |= 1 << bit % 8;
        all.push_back(bit);
      }
      for (const size_t begin : {0, 3, 8, 61}) {
        if (begin > 8 * size) continue;
        for (const size_t most : {0, 1, 8, 63, 64, 65, 256}) {
          std::vector<uint32_t> expected;
          for (const size_t bit : all) {
            if (bit >= begin && expected.size() < most) {
              expected.push_back(static_cast<uint32_t>(bit - begin));
            }
          }
          const size_t end = most == 0                 ? begin
                             : expected.size() == most ? begin + expected.back() + 1
                                                       : 8 * size;
          test::OnEveryTarget([&](const char* target) {
            std::vector<uint32_t> ones(most + kernels::kOnesSlack);
            size_t bit = begin;
            const size_t found = kernels::FindOnes(bytes.data(), size, most, &bit, ones.data());
            ones.resize(found);
            EXPECT_EQ(ones, expected) << target << " " << density << " " << size << " " << begin;
            EXPECT_EQ(bit, end) << target << " " << density << " " << size << " " << begin;
          });
        }
      }
    }
  }
}

TEST(IndexKernelsTest, PlacePositionsAddsGapsAlsoPastThe32ndBit) {
  Random random(2);
  for (int bits = 0; bits <= 8; ++bits) {
    for (const size_t size : {0, 1, 3, 8, 17, 256}) {
      for (const uint64_t first : {uint64_t{0}, uint64_t{77}, (uint64_t{1} << 32) - 100}) {
        std::vector<uint8_t> plain(size);
        std::vector<uint32_t> places = {~uint32_t{0}}, expected;
        uint64_t next = first;
        for (size_t i = 0; i < size; ++i) {
          const auto zeros = static_cast<uint32_t>(random.Uniform() < 0.1 ? 1 << 20 : i % 5);
          plain[i] = static_cast<uint8_t>(random.Uniform() * (1 << bits));
          places.push_back(places.back() + zeros + 1);
          const uint64_t position = next + (uint64_t{zeros} << bits) + plain[i];
          expected.push_back(static_cast<uint32_t>(position));
          next = position + 1;
        }
        test::OnEveryTarget([&](const char* target) {
          std::vector<uint32_t> out(size);
          EXPECT_EQ(kernels::PlacePositions(places.data() + 1, plain.data(), size, bits, first,
                                            out.data()),
                    next)
              << target << " " << bits << " " << size;
          EXPECT_EQ(out, expected) << target << " " << bits << " " << size;
        });
      }
    }
  }
}

}  // namespace
}  // namespace weir
