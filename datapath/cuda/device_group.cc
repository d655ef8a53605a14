// SPDX-License-Identifier: Apache-2.0
// A group is a communicator and a stream, on which its exchanges run one after another.

#include "datapath/cuda/device_group.h"

#include "datapath/cuda/memory.h"
#include "datapath/nccl/communicator.h"

namespace weir::cuda {
namespace {

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(int ordinal, OwnStream stream, std::unique_ptr<nccl::Communicator> communicator)
      : ordinal_(ordinal), stream_(std::move(stream)), communicator_(std::move(communicator)) {}
  ~NcclGroup() override { Abort(); }

  void Abort() noexcept override {
    if (communicator_ == nullptr) return;
    const UseDevice use(ordinal_);
    communicator_.reset();
    (void)Synchronise(stream_.get());  // the kernels have been told to end
  }

  StatusOr<bool> IsDone() override {
    if (communicator_ == nullptr) return Aborted();
    const UseDevice use(ordinal_);
    if (!settled_) {
      WEIR_ASSIGN_OR_RETURN(settled_, communicator_->IsSettled());
      if (!settled_) return false;
      // Only now is all of the work in the stream.
      WEIR_ASSIGN_OR_RETURN(moved_, Event::Record(stream_.get()));
      return moved_.IsDone();
    }
    // NCCL reports failures of a transfer here, and the stream never ends then.
    WEIR_RETURN_IF_ERROR(communicator_->IsSettled().status());
    return moved_.IsDone();
  }

  Status Exchange(std::span<const std::span<const float>> outgoing,
                  std::span<const std::span<float>> incoming) override {
    if (communicator_ == nullptr) return Aborted();
    const UseDevice use(ordinal_);
    settled_ = false;
    return communicator_->Exchange(outgoing, incoming, stream_.get().handle);
  }

 private:
  static Status Aborted() { return Unavailable("the group of devices was aborted"); }

  const int ordinal_;
  OwnStream stream_;
  std::unique_ptr<nccl::Communicator> communicator_;  // null: aborted
  bool settled_ = false;
  Event moved_;  // the work that was begun last
};

}  // namespace

StatusOr<std::unique_ptr<DeviceGroup>> JoinGroup(int ordinal, const DeviceGroupId& id, int place,
                                                 int size) {
  const UseDevice use(ordinal);
  WEIR_ASSIGN_OR_RETURN(OwnStream stream, OwnStream::Make());
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<nccl::Communicator> communicator,
                        nccl::Communicator::Join(id, place, size));
  return std::unique_ptr<DeviceGroup>(
      std::make_unique<NcclGroup>(ordinal, std::move(stream), std::move(communicator)));
}

}  // namespace weir::cuda
