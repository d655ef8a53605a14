// SPDX-License-Identifier: Apache-2.0
// CUDA graphs: what can be recorded does its work again on new content, what cannot says so, and
// Weir's own calls spoil no graph that another thread records.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "datapath/codec/select/threshold_codec.h"
#include "datapath/cuda/device.h"
#include "tests/datapath/cuda/device_rig.h"

namespace weir::cuda {
namespace {

using test::Caller;
using test::OnDevice;
using test::OnHost;
using testing::HasSubstr;

constexpr size_t kGraphElements = 5000;

OwnStream NewStream() {
  StatusOr<OwnStream> made = OwnStream::Make();
  WEIR_CHECK(made.ok());
  return *std::move(made);
}

/// Whether the README says so.
bool CanBeRecorded(const DeviceCodec& codec) {
  return codec.host().Traits().rounds == 1 &&
         dynamic_cast<const ThresholdCodec*>(&codec.host()) == nullptr;
}

std::vector<float> Input(float scale) {
  std::vector<float> x = weir::test::NormalVector(kGraphElements, 3);
  for (float& value : x) value *= scale;
  return x;
}

void Write(const OnDevice<float>& to, std::span<const float> values, Stream stream) {
  ASSERT_TRUE(CopyToDevice(to.data(), values.data(), values.size_bytes(), stream).ok());
  ASSERT_TRUE(Synchronise(stream).ok());
}

void ExpectRefused(const Status& status, const std::string& codec) {
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << codec << ": " << ToString(status);
  EXPECT_THAT(Message(status), HasSubstr(codec + ": "));
  EXPECT_THAT(Message(status), HasSubstr("cannot be part of a CUDA graph"));
}

TEST(GraphTest, CodecsOfAFixedSizeEncodeAgainWhatIsInTheMemoryThen) {
  size_t recorded = 0;
  for (const DeviceCodec* codec : DeviceCodecs()) {
    if (!CanBeRecorded(*codec)) continue;
    SCOPED_TRACE(codec->host().Traits().name);
    const OwnStream stream = NewStream();
    const std::vector<float> first = Input(1);
    const EncodeContext context = weir::test::ContextFor(codec->host(), first, 2);
    Caller caller(*codec, context, kGraphElements, stream.get());
    const OnDevice<float> gradient{std::span<const float>(first)};
    const OnDevice<std::byte> out(codec->host().MaxEncodedBytes(kGraphElements, context));
    const auto encode = [&] {
      return codec->Encode({.gradient = gradient.span()}, caller.call(), out.span());
    };
    ASSERT_TRUE(encode().ok());  // a device loads kernels at their first use
    ASSERT_TRUE(Synchronise(stream.get()).ok());
    const StatusOr<Graph> graph = Graph::Record(stream.get(), encode);
    ASSERT_TRUE(graph.ok()) << ToString(graph.status());
    EXPECT_FALSE(IsCaptured(stream.get()));
    for (const float scale : {-0.5f, 0.25f}) {
      const std::vector<float> x = Input(scale);
      Write(gradient, x, stream.get());
      ASSERT_TRUE(graph->Launch(stream.get()).ok());
      ASSERT_TRUE(Synchronise(stream.get()).ok());
      std::vector<std::byte> payload = out.Read();
      payload.resize(caller.outcome().bytes);
      EXPECT_EQ(payload, weir::test::EncodeOrDie(codec->host(), x, context).payload);
    }
    ++recorded;
  }
  EXPECT_GE(recorded, 10u);
}

TEST(GraphTest, CodecsOfAFixedSizeDecodeAgainWhatIsInTheMemoryThen) {
  for (const DeviceCodec* codec : DeviceCodecs()) {
    if (!CanBeRecorded(*codec)) continue;
    SCOPED_TRACE(codec->host().Traits().name);
    const OwnStream stream = NewStream();
    const EncodeContext context = weir::test::ContextFor(codec->host(), Input(1), 1);
    std::vector<std::byte> payload =
        weir::test::EncodeOrDie(codec->host(), Input(1), context).payload;
    Caller caller(*codec, context, kGraphElements, stream.get());
    const OnDevice<std::byte> from{std::span<const std::byte>(payload)};
    std::vector<float> expected(kGraphElements, 0.5f);
    const OnDevice<float> sum{std::span<const float>(expected)};
    const auto decode = [&] {
      return codec->DecodeAdd(from.span(), caller.call(), 0.25f, sum.span());
    };
    ASSERT_TRUE(decode().ok());
    ASSERT_TRUE(Synchronise(stream.get()).ok());
    const StatusOr<Graph> graph = Graph::Record(stream.get(), decode);
    ASSERT_TRUE(graph.ok()) << ToString(graph.status());
    Write(sum, expected, stream.get());
    for (const float scale : {-0.5f, 0.25f}) {
      payload = weir::test::EncodeOrDie(codec->host(), Input(scale), context).payload;
      ASSERT_EQ(payload.size(), from.span().size());
      ASSERT_TRUE(CopyToDevice(from.data(), payload.data(), payload.size(), stream.get()).ok());
      ASSERT_TRUE(Synchronise(stream.get()).ok());
      ASSERT_TRUE(graph->Launch(stream.get()).ok());
      ASSERT_TRUE(Synchronise(stream.get()).ok());
      ASSERT_TRUE(codec->host().DecodeAdd(payload, context, 0.25f, expected).ok());
    }
    EXPECT_EQ(test::Patterns(sum.Read()), test::Patterns(expected));
  }
}

TEST(GraphTest, OtherCodecsRefuseByName) {
  size_t refused = 0;
  for (const DeviceCodec* codec : DeviceCodecs()) {
    if (CanBeRecorded(*codec)) continue;
    const std::string& name = codec->host().Traits().name;
    SCOPED_TRACE(name);
    const OwnStream stream = NewStream();
    const std::vector<float> x = Input(1);
    const EncodeContext context = weir::test::ContextFor(codec->host(), x, 2);
    Caller caller(*codec, context, kGraphElements, stream.get());
    const OnDevice<float> gradient{std::span<const float>(x)};
    const OnDevice<std::byte> out(codec->host().MaxEncodedBytes(kGraphElements, context));
    const auto encode = [&] {
      return codec->Encode({.gradient = gradient.span()}, caller.call(), out.span());
    };
    ExpectRefused(Graph::Record(stream.get(), encode).status(), name);
    EXPECT_TRUE(encode().ok());  // the stream is as it was
    EXPECT_TRUE(Synchronise(stream.get()).ok());
    ++refused;
  }
  EXPECT_GE(refused, 10u);
}

TEST(GraphTest, LowRankRefusesToDecodeToo) {
  const DeviceCodec& codec = *FindDeviceCodec("power_sgd");
  const OwnStream stream = NewStream();
  const EncodeContext context = weir::test::ContextFor(codec.host(), Input(1), 2);
  Caller caller(codec, context, kGraphElements, stream.get());
  const std::vector<std::byte> payload =
      weir::test::EncodeOrDie(codec.host(), Input(1), context).payload;
  const OnDevice<std::byte> from{std::span<const std::byte>(payload)};
  const OnDevice<float> sum(kGraphElements);
  caller.call().payload_on_host = payload;
  const auto decode = [&] { return codec.DecodeAdd(from.span(), caller.call(), 1, sum.span()); };
  ExpectRefused(Graph::Record(stream.get(), decode).status(), "power_sgd");
  EXPECT_TRUE(decode().ok());
  EXPECT_TRUE(Synchronise(stream.get()).ok());
}

TEST(GraphTest, ABucketOfAStreamThatRecordsIsRefused) {
  const OwnStream stream = NewStream();
  const OnDevice<float> gradient(kGraphElements);
  StatusOr<Device*> device = FindDevice(0);
  ASSERT_TRUE(device.ok());
  const DeviceData data{
      .data = gradient.data(), .elements = kGraphElements, .stream = stream.get().handle};
  const StatusOr<Graph> graph =
      Graph::Record(stream.get(), [&] { return (*device)->Open(data).status(); });
  EXPECT_EQ(graph.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(graph.status()),
            "the stream records a CUDA graph, which cannot hold an exchange with other hosts");
  EXPECT_TRUE((*device)->Open(data).ok());
}

/// A bucket's whole way on a thread of Weir's, beside a graph of the training loop.
TEST(GraphTest, AnotherThreadsBucketDoesNotSpoilAGraph) {
  const OwnStream recording = NewStream(), stream = NewStream();
  const std::vector<float> x = Input(1);
  const OnDevice<float> gradient{std::span<const float>(x)}, other(kGraphElements);
  ASSERT_TRUE(Synchronise({}).ok());
  StatusOr<Device*> device = FindDevice(0);
  ASSERT_TRUE(device.ok());
  const Codec& codec = weir::test::FindCodec("fp16");
  const EncodeContext context = weir::test::ContextFor(codec, x, 2);
  std::vector<std::byte> out(codec.MaxEncodedBytes(kGraphElements, context));
  Status status = OkStatus();
  const auto bucket_of_weir = [&]() -> Status {
    WEIR_ASSIGN_OR_RETURN(const auto bucket, (*device)->Open({.data = gradient.data(),
                                                              .elements = kGraphElements,
                                                              .stream = stream.get().handle}));
    for (bool ready = false; !ready;) {
      WEIR_ASSIGN_OR_RETURN(ready, bucket->IsReady());
    }
    WEIR_RETURN_IF_ERROR(bucket->Floats().status());
    WEIR_ASSIGN_OR_RETURN(float* const kept, (*device)->Allocate(kGraphElements));
    const ScratchBuffer pinned = (*device)->pinned().Take(1 << 20);
    WEIR_RETURN_IF_ERROR(bucket->Encode(codec, {}, {}, context, out).status());
    (*device)->Free(kept);
    return OkStatus();
  };
  const StatusOr<Graph> graph = Graph::Record(recording.get(), [&] {
    std::thread weir([&] { status = bucket_of_weir(); });
    const Status filled = FillDevice(other.data(), 0, kGraphElements, recording.get());
    weir.join();
    return filled;
  });
  EXPECT_TRUE(status.ok()) << ToString(status);
  EXPECT_TRUE(graph.ok()) << ToString(graph.status());
  EXPECT_EQ(out, weir::test::EncodeOrDie(codec, x, context).payload);
}

TEST(GraphTest, OnTheHostWhatCudaForbidsSpoilsAGraph) {
  if (!OnHost()) GTEST_SKIP() << "a driver may allow more";
  const OwnStream recording = NewStream(), stream = NewStream();
  const auto record = [&](const std::function<void()>& call) {
    return Graph::Record(recording.get(),
                         [&] {
                           std::thread(call).join();
                           return OkStatus();
                         })
        .status();
  };
  EXPECT_TRUE(record([] {}).ok());
  EXPECT_FALSE(record([] { (void)DeviceBuffer::Make(100); }).ok());
  EXPECT_FALSE(record([] { (void)PinnedBuffer::Make(100); }).ok());
  EXPECT_FALSE(record([&] { (void)Event::Record(stream.get())->IsDone(); }).ok());
  EXPECT_FALSE(record([&] {
                 const UseDevice use(0);
                 (void)Synchronise(recording.get());
               }).ok());
  EXPECT_TRUE(record([] {
                const UseDevice use(0);
                (void)DeviceBuffer::Make(100);
              }).ok());
}

}  // namespace
}  // namespace weir::cuda
