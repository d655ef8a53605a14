// SPDX-License-Identifier: Apache-2.0
// The construction against published vectors, and that nothing but what was sealed opens.

#include "datapath/wire/frame_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "datapath/wire/frame.h"

namespace weir {
namespace {

using Bytes = std::vector<std::byte>;

Bytes FromHex(const std::string& hex) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

template <size_t kSize>
std::array<std::byte, kSize> ArrayOf(const std::string& hex) {
  const Bytes bytes = FromHex(hex);
  EXPECT_EQ(bytes.size(), kSize);
  std::array<std::byte, kSize> array{};
  std::copy_n(bytes.begin(), std::min(kSize, bytes.size()), array.begin());
  return array;
}

struct Vector {
  const char* key;
  const char* salt;
  uint64_t number;  // the last 8 octets of the nonce
  const char* header;
  const char* payload;
  const char* sealed;
  const char* tag;
};

void ExpectVector(const Vector& v) {
  const FrameKey key = {ArrayOf<32>(v.key), ArrayOf<4>(v.salt)};
  const Bytes header = FromHex(v.header), payload = FromHex(v.payload);
  const bool encrypts = !payload.empty();
  StatusOr<FrameSealer> sealer = FrameSealer::Create(key, encrypts, v.number);
  ASSERT_TRUE(sealer.ok()) << sealer.status();
  Bytes sealed(payload.size());
  FrameTag tag;
  sealer->Seal(header, payload, sealed, &tag);
  EXPECT_EQ(sealed, FromHex(v.sealed));
  EXPECT_EQ(tag, ArrayOf<16>(v.tag));
  EXPECT_EQ(sealer->next(), v.number + 1);
  StatusOr<FrameOpener> opener = FrameOpener::Create(key, encrypts, v.number);
  ASSERT_TRUE(opener.ok()) << opener.status();
  opener->Begin(header);
  opener->Update(sealed);
  EXPECT_TRUE(opener->Finish(tag));
  EXPECT_EQ(sealed, payload);
}

// NIST CAVP, gcmEncryptExtIV256.rsp: Keylen 256, IVlen 96, PTlen 0, AADlen 128, Taglen 128.
TEST(FrameSealTest, TagIsThatOfNistVectorWithoutPlaintext) {
  ExpectVector({"78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223", "d79cf22d",
                0x504cc793c3fb6c8a, "b96baa8c1c75a671bfb2d08d06be5f36", "", "",
                "3e5d486aa2e30b22e040b85723a06e76"});
}

// McGrew and Viega, "The Galois/Counter Mode of operation", test case 16.
TEST(FrameSealTest, CiphertextAndTagAreThoseOfPublishedTestCase16) {
  ExpectVector({"feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabe",
                0xfacedbaddecaf888, "feedfacedeadbeeffeedfacedeadbeefabaddad2",
                "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
                "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
                "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
                "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
                "76fc6ece0f4e1768cddf8853bb2d551b"});
}

FrameKey SomeKey() {
  FrameKey key;
  for (size_t i = 0; i < key.key.size(); ++i) key.key[i] = static_cast<std::byte>(7 * i + 1);
  key.salt[2] = std::byte{9};
  return key;
}

class FrameSealBothTest : public ::testing::TestWithParam<bool> {
 protected:
  FrameSealBothTest()
      : sealer_(*FrameSealer::Create(SomeKey(), GetParam())),
        opener_(*FrameOpener::Create(SomeKey(), GetParam())) {}

  struct Sealed {
    Bytes header, payload;
    FrameTag tag;
  };
  Sealed Seal(const Bytes& header, const Bytes& payload) {
    Sealed sealed = {header, payload, {}};
    Bytes out(payload.size());
    sealer_.Seal(header, payload, out, &sealed.tag);
    if (GetParam()) sealed.payload = out;
    return sealed;
  }
  bool Open(FrameOpener& opener, Sealed sealed) {
    opener.Begin(sealed.header);
    opener.Update(sealed.payload);
    return opener.Finish(sealed.tag);
  }

  FrameSealer sealer_;
  FrameOpener opener_;
};
INSTANTIATE_TEST_SUITE_P(AuthenticatedAndEncrypted, FrameSealBothTest, ::testing::Bool());

TEST_P(FrameSealBothTest, PayloadInAnyPiecesOpensToWhatWasSealed) {
  for (const size_t size : {0u, 1u, 15u, 16u, 17u, 1000u, 70000u}) {
    Bytes payload(size);
    for (size_t i = 0; i < size; ++i) payload[i] = static_cast<std::byte>(i * 31);
    for (const size_t piece : {1u, 16u, 333u, 65536u}) {
      if (piece == 1 && size > 1000) continue;
      Sealed sealed = Seal(Bytes(kFrameHeaderBytes, std::byte{3}), payload);
      opener_.Begin(sealed.header);
      for (size_t at = 0; at < size; at += piece) {
        opener_.Update(std::span(sealed.payload).subspan(at, std::min(piece, size - at)));
      }
      EXPECT_TRUE(opener_.Finish(sealed.tag)) << size << " in pieces of " << piece;
      EXPECT_EQ(sealed.payload, payload);
    }
  }
}

TEST_P(FrameSealBothTest, EverySingleFlippedBitIsRefused) {
  const Sealed good = Seal(Bytes(kFrameHeaderBytes, std::byte{3}), Bytes(24, std::byte{5}));
  const size_t bits = 8 * (good.header.size() + good.payload.size() + good.tag.size());
  for (size_t bit = 0; bit < bits; ++bit) {
    Sealed bad = good;
    size_t at = bit / 8;
    if (at < bad.header.size()) {
      bad.header[at] ^= static_cast<std::byte>(1 << bit % 8);
    } else if (at -= bad.header.size(); at < bad.payload.size()) {
      bad.payload[at] ^= static_cast<std::byte>(1 << bit % 8);
    } else {
      bad.tag[at - bad.payload.size()] ^= static_cast<std::byte>(1 << bit % 8);
    }
    FrameOpener opener = *FrameOpener::Create(SomeKey(), GetParam());
    EXPECT_FALSE(Open(opener, bad)) << "bit " << bit;
  }
  EXPECT_TRUE(Open(opener_, good));
}

TEST_P(FrameSealBothTest, RepeatedMovedCutAndForeignFramesAreRefused) {
  const Bytes header(kFrameHeaderBytes, std::byte{3}), payload(32, std::byte{5});
  const Sealed first = Seal(header, payload), second = Seal(header, payload);
  EXPECT_NE(first.tag, second.tag);
  EXPECT_TRUE(Open(opener_, first));
  EXPECT_FALSE(Open(opener_, first)) << "repeated";
  opener_ = *FrameOpener::Create(SomeKey(), GetParam());
  EXPECT_FALSE(Open(opener_, second)) << "the first one is missing";
  // Where header ends and payload begins counts, too.
  opener_ = *FrameOpener::Create(SomeKey(), GetParam());
  Sealed cut = first;
  cut.payload.pop_back();
  EXPECT_FALSE(Open(opener_, cut)) << "cut";
  FrameKey other = SomeKey();
  other.salt[0] = std::byte{1};
  opener_ = *FrameOpener::Create(other, GetParam());
  EXPECT_FALSE(Open(opener_, first)) << "of another connection";
  opener_ = *FrameOpener::Create(SomeKey(), !GetParam());
  EXPECT_FALSE(Open(opener_, first)) << "encrypted for authenticated or the other way";
}

TEST_P(FrameSealBothTest, AheadOpensALaterFrameAndDisturbsNothing) {
  const Bytes header(kFrameHeaderBytes, std::byte{3}), payload(32, std::byte{5});
  Sealed first = Seal(header, payload);
  const Sealed second = Seal(header, payload), third = Seal(header, payload);
  opener_.Begin(first.header);
  opener_.Update(std::span(first.payload).first(5));
  FrameOpener ahead = *opener_.Ahead(1);
  EXPECT_TRUE(Open(ahead, third));
  opener_.Update(std::span(first.payload).subspan(5));
  EXPECT_TRUE(opener_.Finish(first.tag));
  EXPECT_TRUE(Open(opener_, second));
}

TEST_P(FrameSealBothTest, ANumberThatWasTakenBackIsUsedAgain) {
  const Bytes header(kFrameHeaderBytes, std::byte{3});
  Seal(header, Bytes(8));
  Seal(header, Bytes(9));
  sealer_.TakeBackTo(0);
  EXPECT_TRUE(Open(opener_, Seal(header, Bytes(4))));
}

}  // namespace
}  // namespace weir
