// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Unix sockets over which ranks of one node agree to share memory. They are in the abstract
// namespace, so that no file can stay behind. They carry descriptors and tell the peer's process
// and user.

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datapath/transport/mesh/socket.h"

namespace weir::shm {

/// A number that two processes have in common, up to chance, only if they run on the same boot of
/// one machine, as one user, in one network namespace (which abstract sockets belong to). 0: this
/// process cannot tell. Equal numbers are a hint only, and trying costs little time.
uint32_t NodeIdentity();

/// 16 random bytes, the name of a rendezvous socket. Empty: the system has no randomness.
std::string NewRendezvousName();

/// Listens at the rendezvous socket `name`, non-blocking. kUnavailable.
StatusOr<mesh::UniqueFd> ListenAtRendezvous(const std::string& name, int backlog);
/// Connects to the process that listens at the rendezvous socket `name`. kUnavailable: there is
/// none, or it is another user's.
StatusOr<mesh::UniqueFd> ConnectToRendezvous(const std::string& name);

/// The peer's process, 0 when it is hidden in another namespace. kUnavailable: of another user.
StatusOr<pid_t> CheckPeer(int fd);
/// A descriptor that becomes readable when the process ends; none when the kernel has no pidfds.
mesh::UniqueFd WatchProcess(pid_t process);

/// One message of the handshake, with the descriptors that came with it.
struct HandshakeMessage {
  std::vector<std::byte> bytes;
  std::vector<mesh::UniqueFd> descriptors;
};
inline constexpr size_t kHandshakeBytesMax = 4096;
inline constexpr size_t kDescriptorsMax = 4;

/// kUnavailable: not sent.
Status SendHandshake(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors);
/// Returns no message when none has arrived yet. kUnavailable: the peer closed, or this process has
/// no descriptors left for those that came with the message; kDataLoss: the message exceeds the
/// bounds above.
StatusOr<std::optional<HandshakeMessage>> ReceiveHandshake(int fd);

/// Checks that a descriptor from a peer is an eventfd, and makes it non-blocking. kDataLoss: it is
/// something else, to which a write could block or raise a signal.
Status CheckEventFd(int fd);

}  // namespace weir::shm
