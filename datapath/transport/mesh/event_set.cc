#include "datapath/transport/mesh/event_set.h"

#include <string>

namespace weir::mesh {

StatusOr<std::unique_ptr<EventSet>> MakeEventSet(std::string_view name) {
  if (name == "epoll") return MakeEpollSet();
  if (name != "io_uring") {
    return InvalidArgument(
        StrCat("event loop: expected epoll or io_uring, found '", std::string(name), "'"));
  }
#if WEIR_HAVE_IO_URING
  return MakeIoUringSet();
#else
  return Unimplemented("event loop io_uring: this build was made without liburing");
#endif
}

}  // namespace weir::mesh
