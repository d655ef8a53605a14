#include "datapath/aggregation/xdp/xdp_offload.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "datapath/aggregation/io/address.h"

namespace weir::aggregation {
namespace {

constexpr size_t kInterfacesMax = 64;
constexpr Duration kLookEvery = std::chrono::milliseconds(100);  // whether to end

}  // namespace

StatusOr<std::unique_ptr<XdpOffload>> XdpOffload::Start(const XdpOffloadOptions& options) {
  if (options.interfaces.empty() || options.interfaces.size() > kInterfacesMax) {
    return InvalidArgument(
        StrCat("xdp: expected 1 to 64 interfaces, found ", options.interfaces.size()));
  }
  mesh::UniqueFd socket(fcntl(options.socket, F_DUPFD_CLOEXEC, 0));
  if (!socket) return Unavailable("xdp: no socket to reply from");
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<XdpPlane> plane, XdpPlane::Load(options.plane));
  for (const std::string& interface : options.interfaces) {
    WEIR_RETURN_IF_ERROR(plane->Attach(interface, options.mode));
  }
  return std::unique_ptr<XdpOffload>(new XdpOffload(std::move(plane), std::move(socket)));
}

XdpOffload::XdpOffload(std::unique_ptr<XdpPlane> plane, mesh::UniqueFd socket)
    : plane_(std::move(plane)), socket_(std::move(socket)) {
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

void XdpOffload::Loop() {
  while (!stopping_) plane_->SendReplies(kLookEvery, this);
}

void XdpOffload::Send(SourceAddress to, std::span<const std::byte> packet) {
  SendToAll({&to, 1}, packet);
}

void XdpOffload::SendToAll(std::span<const SourceAddress> to, std::span<const std::byte> packet) {
  std::array<sockaddr_in, kWorkersMax> addresses;
  std::array<mmsghdr, kWorkersMax> messages = {};
  iovec body = {.iov_base = const_cast<std::byte*>(packet.data()), .iov_len = packet.size()};
  for (size_t i = 0; i < to.size(); ++i) {
    addresses[i] = ToSocketAddress(to[i]);
    msghdr& message = messages[i].msg_hdr;
    message.msg_name = &addresses[i];
    message.msg_namelen = sizeof addresses[i];
    message.msg_iov = &body;
    message.msg_iovlen = 1;
  }
  size_t sent = 0;
  while (sent < to.size()) {
    const int more = sendmmsg(socket_.get(), messages.data() + sent,
                              static_cast<unsigned>(to.size() - sent), MSG_DONTWAIT);
    // The first of these could not be sent, be it that the buffer is full or that there is no
    // route: its worker asks again.
    if (more <= 0) ++unsent_;
    sent += more > 0 ? static_cast<size_t>(more) : 1;
  }
}

}  // namespace weir::aggregation
