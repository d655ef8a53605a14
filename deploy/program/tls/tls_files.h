// SPDX-License-Identifier: Apache-2.0
#pragma once
// The certificate, key and authorities of a program, as files that are renewed while it runs. There
// is no thread and no interval: every new connection checks the files, so a renewed file is used at
// once. Reports on their state check them, too, so that a failed renewal is known before a
// connection needs it.

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "datapath/base/mutex.h"
#include "datapath/base/status.h"
#include "deploy/program/file_state.h"

struct ssl_ctx_st;     // OpenSSL's SSL_CTX
struct x509_store_st;  // and X509_STORE

namespace weir {

/// A longer file is rejected.
inline constexpr size_t kTlsFileBytesMax = 1u << 20;

struct TlsPaths {
  std::string cert = {}, key = {};  // PEM; both, or neither
  std::string ca = {};              // PEM; empty: none
};

/// Certificate and key as OpenSSL holds them.
struct TlsPair;

/// The contents of the files at one time: every part could be parsed, and the key belongs to the
/// certificate.
struct TlsMaterial {
  std::string cert, key, ca;            // PEM; empty if the path is empty
  std::shared_ptr<const TlsPair> pair;  // null without certificate and key
  double certificate_end_unix_s = 0;    // expiry of the first certificate of `cert`; 0 without any
};

/// The state of renewals, for /metrics.
struct TlsHealth {
  bool renewed = true;                // the current files are in use
  uint64_t refused = 0;               // number of invalid states of the files since the start
  double certificate_end_unix_s = 0;  // of the material in use; 0 without a certificate
};

/// Thread-safe.
class TlsFiles {
 public:
  explicit TlsFiles(TlsPaths paths) : paths_(std::move(paths)) {}
  const TlsPaths& paths() const { return paths_; }

  /// Returns the contents of the files. Every call looks at them (stat) and reads them when one of
  /// them, or the target of a symbolic link on the path to it, has changed. If they are then not
  /// valid, because one is missing, truncated, expired, or does not belong to the other, the
  /// earlier material is returned and the cause is logged as an error, once for each such state of
  /// the files. Without earlier material the cause is the result: kUnavailable for a file that
  /// cannot be read, kInvalidArgument for one whose content is wrong.
  StatusOr<std::shared_ptr<const TlsMaterial>> Current() WEIR_EXCLUDES(mutex_);

  /// Checks the files as Current() does, and returns the result as figures.
  TlsHealth Health() WEIR_EXCLUDES(mutex_);

 private:
  // Identity, size and times of each file; zeros if it does not exist.
  using States = std::array<FileState, 3>;

  States Look() const;
  StatusOr<std::shared_ptr<const TlsMaterial>> Read() const;
  void Refresh() WEIR_REQUIRES(mutex_);

  const TlsPaths paths_;
  Mutex mutex_;
  States seen_ WEIR_GUARDED_BY(mutex_) = {};
  Status refused_ WEIR_GUARDED_BY(mutex_);  // why the files of `seen_` are not in use
  uint64_t refusals_ WEIR_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const TlsMaterial> current_ WEIR_GUARDED_BY(mutex_);
};

/// Makes servers of `context` use the current contents of `files` for each connection, and TLS 1.2
/// at least. `files` must have a certificate and outlive the context. Returns false if OpenSSL
/// refuses.
bool ServeTls(ssl_ctx_st* context, TlsFiles* files);

/// A new store of the authorities of `material`, which the caller owns.
x509_store_st* MakeAuthorityStore(const TlsMaterial& material);

}  // namespace weir
