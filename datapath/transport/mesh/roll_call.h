// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps track of which ranks are expected, which are connected and why others are not, for every
// kind of rendezvous.

#include <string>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::mesh {

inline constexpr uint32_t kUnknownPeer = UINT32_MAX;

/// The part that all hellos have in common: the sender, and the rank that it expects to reach.
struct Introduction {
  uint64_t job = 0;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t expected_peer = 0;  // kUnknownPeer: the sender accepted the connection, cannot know
};

template <typename Hello>
Introduction IntroductionOf(const Hello& hello) {
  return {hello.job, hello.rank, hello.world, hello.expected_peer};
}

/// Higher ranks dial lower ones. Not thread-safe.
class RollCall {
 public:
  enum class State { kIdle, kDialing, kAwaitingAnswer, kAnswered, kEstablished };
  struct Entry {
    State state = State::kIdle;
    SocketAddress address;  // of lower ranks
    TimePoint next_dial{};
    Duration back_off{};
    std::string last_failure = "has not connected";
  };

  /// `options` outlives it.
  explicit RollCall(const TransportOptions& options);

  /// Starts with no rank connected. kInvalidArgument names a rank whose address is malformed.
  Status Begin(const std::vector<TransportAddress>& addresses);
  Entry& operator[](int rank) { return entries_[rank]; }
  const Entry& operator[](int rank) const { return entries_[rank]; }
  const TransportAddress& AddressOf(int rank) const { return addresses_[rank]; }
  /// "rank 2 (10.0.0.3:40000)".
  std::string NameOf(int rank) const;

  bool Complete() const;
  /// The error kDeadlineExceeded that names the missing ranks and what was tried.
  Status Missing() const;
  bool IsDue(int rank, TimePoint now) const;
  /// The latest time at which a wait for events has to end.
  TimePoint WakeAt(TimePoint now, TimePoint deadline) const;
  /// Takes note that an attempt failed. The rank becomes idle and is dialed again after a while.
  void Retry(int rank, std::string why, TimePoint now);
  /// Counts and logs a caller that was refused.
  void NoteRefusal(std::string whom_and_why);

  Introduction Own(uint32_t called) const;
  /// Returns why a caller is not one of the ranks that dial this one; empty: it is.
  std::string Judge(const Introduction& caller) const;
  /// kFailedPrecondition: the answer to a dial of `rank` is not from that rank.
  Status CheckAnswer(int rank, const Introduction& answer) const;

 private:
  const TransportOptions& options_;
  Random random_;
  std::vector<TransportAddress> addresses_;
  std::vector<Entry> entries_;
  int refused_ = 0;
  std::string last_refusal_;
};

}  // namespace weir::mesh
