// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/xdp/xdp_offload.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <utility>

namespace weir::aggregation {
namespace {

constexpr size_t kInterfacesMax = 64;
constexpr Duration kLookEvery = std::chrono::milliseconds(100);  // checks for the end
constexpr Duration kGather = std::chrono::microseconds(30);
constexpr Duration kClosely = std::chrono::microseconds(100);

}  // namespace

StatusOr<std::unique_ptr<XdpOffload>> XdpOffload::Start(const XdpOffloadOptions& options) {
  if (options.interfaces.empty() || options.interfaces.size() > kInterfacesMax) {
    return InvalidArgument(
        StrCat("xdp: expected 1 to 64 interfaces, found ", options.interfaces.size()));
  }
  mesh::UniqueFd socket(fcntl(options.socket, F_DUPFD_CLOEXEC, 0));
  if (!socket) return Unavailable("xdp: no socket to reply from");
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<UdpPort> port, UdpPort::ForSending(std::move(socket)));
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<XdpPlane> plane, XdpPlane::Load(options.plane));
  for (const std::string& interface : options.interfaces) {
    WEIR_RETURN_IF_ERROR(plane->Attach(interface, options.mode));
  }
  return std::unique_ptr<XdpOffload>(new XdpOffload(std::move(plane), std::move(port)));
}

XdpOffload::XdpOffload(std::unique_ptr<XdpPlane> plane, std::unique_ptr<UdpPort> port)
    : plane_(std::move(plane)), port_(std::move(port)) {
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "weir-xdp");
}

XdpOffload::~XdpOffload() {
  stopping_ = true;
  thread_.join();
}

StatusOr<OffloadCounters> XdpOffload::Counters() const {
  WEIR_ASSIGN_OR_RETURN(const XdpPlaneCounters plane, plane_->Counters());
  return OffloadCounters{.packets = plane.packets,
                         .passed = plane.passed,
                         .handed = plane.handed,
                         .ring_full = plane.ring_full,
                         .unsent = unsent_};
}

// Replies that wait together are sent together: rounds completed one after the other mostly have
// the same recipients, and their replies form a row of packets to each of them. Waking and sending
// cost more than a reply. So where replies follow each other closely, the thread lets them gather
// for a moment, as interfaces do with frames before they interrupt.
void XdpOffload::Loop() {
  prctl(PR_SET_TIMERSLACK, 1000);  // of this thread, in ns; the default exceeds the moment
  TimePoint sent_at{};
  while (!stopping_) {
    const TimePoint now = RealClock().Now();
    if (now - sent_at >= kClosely) {
      if (!plane_->AwaitReplies(kLookEvery)) continue;
    } else {
      std::this_thread::sleep_for(kGather);
    }
    if (!plane_->SendReplies(this)) continue;
    port_->Flush();
    sent_at = RealClock().Now();
    unsent_ = port_->counters().unsent;
  }
}

void XdpOffload::Send(SourceAddress to, std::span<const std::byte> packet) {
  port_->Send(to, packet);
}

void XdpOffload::SendToAll(std::span<const SourceAddress> to, std::span<const std::byte> packet) {
  port_->Send(to, packet);
}

}  // namespace weir::aggregation
