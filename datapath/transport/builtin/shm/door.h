#pragma once
// Where ranks of one node meet to share memory: Unix sockets in the abstract namespace, which have
// no file that could stay behind, carry descriptors, and say who is at the other end.

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datapath/transport/mesh/socket.h"

namespace weir::shm {

/// Equal, up to chance, for two processes only if they run on one boot of one machine, as one user,
/// in one network namespace (which abstract sockets belong to). 0: cannot tell. What is equal still
/// has to prove itself: a failed attempt costs a little time.
uint32_t NodeIdentity();

/// 16 random bytes that name a door. Empty: the system has no randomness.
std::string NewDoor();

/// Listens at `door`, non-blocking. kUnavailable.
StatusOr<mesh::UniqueFd> OpenDoor(const std::string& door, int backlog);
/// Connects to the process that listens at `door`. kUnavailable: nobody does, or it is another
/// user's.
StatusOr<mesh::UniqueFd> KnockAt(const std::string& door);

/// The peer's process, 0 when it is hidden in another namespace. kUnavailable: of another user.
StatusOr<pid_t> CheckPeer(int fd);
/// Becomes readable when the process ends; none when the kernel has no such thing.
mesh::UniqueFd WatchProcess(pid_t process);

/// One message between the two, with the descriptors that came along.
struct Letter {
  std::vector<std::byte> bytes;
  std::vector<mesh::UniqueFd> descriptors;
};
inline constexpr size_t kLetterBytesMax = 4096;
inline constexpr size_t kDescriptorsMax = 4;

/// kUnavailable: not sent.
Status SendLetter(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors);
/// Nothing when none is there yet. kUnavailable: the peer closed, or this process has no
/// descriptors for those that came along; kDataLoss: longer than the bounds.
StatusOr<std::optional<Letter>> ReceiveLetter(int fd);

/// Takes an eventfd that a peer sent. kDataLoss: it is something else, to which a write could block
/// or kill.
Status CheckBell(int fd);

}  // namespace weir::shm
