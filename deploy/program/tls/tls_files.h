// SPDX-License-Identifier: Apache-2.0
#pragma once
// The certificate, key and authorities of a program, as files that are renewed while it runs. There
// is no thread and no interval: whoever starts a connection asks, and a changed file counts for
// that connection at once. Whoever reports on them asks, too: a renewal that failed is known before
// a connection needs it.

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "datapath/base/mutex.h"
#include "datapath/base/status.h"

struct ssl_ctx_st;     // OpenSSL's SSL_CTX
struct x509_store_st;  // and X509_STORE

namespace weir {

/// A longer file is refused.
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
  std::string cert, key, ca;            // PEM; empty where the path is
  std::shared_ptr<const TlsPair> pair;  // of cert and key; null without them
  double certificate_end_unix_s = 0;    // until when the first of `cert` holds; 0 without any
};

/// How renewals go, for /metrics.
struct TlsHealth {
  bool renewed = true;                // what the files hold now is what is in use
  uint64_t refused = 0;               // states of the files that were not good, since the start
  double certificate_end_unix_s = 0;  // of the material in use; 0 without a certificate
};

/// Thread-safe.
class TlsFiles {
 public:
  explicit TlsFiles(TlsPaths paths) : paths_(std::move(paths)) {}
  const TlsPaths& paths() const { return paths_; }

  /// Returns the contents of the files. Every call looks at them (stat) and reads them when one of
  /// them, or the target of a symbolic link on the path to it, has changed. If they are then not
  /// valid, because one is missing, truncated, or does not belong to the other, the earlier
  /// material is returned and the cause is logged as an error, once for each such state of the
  /// files. Without earlier material the cause is the result: kUnavailable for a file that cannot
  /// be read, kInvalidArgument for one whose content is wrong.
  StatusOr<std::shared_ptr<const TlsMaterial>> Current() WEIR_EXCLUDES(mutex_);

  /// Looks at the files as Current() does, and says what came of it.
  TlsHealth Health() WEIR_EXCLUDES(mutex_);

 private:
  // Identity, size and times of each file: zeros for one that is not there.
  using Fingerprint = std::array<int64_t, 3 * 7>;

  Fingerprint Look() const;
  StatusOr<std::shared_ptr<const TlsMaterial>> Read() const;
  void Refresh() WEIR_REQUIRES(mutex_);

  const TlsPaths paths_;
  Mutex mutex_;
  Fingerprint seen_ WEIR_GUARDED_BY(mutex_) = {};
  Status refused_ WEIR_GUARDED_BY(mutex_);  // why what `seen_` describes is not current
  uint64_t refusals_ WEIR_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const TlsMaterial> current_ WEIR_GUARDED_BY(mutex_);
};

/// Makes servers of `context` show what `files` hold when a connection begins; TLS 1.2 is the least
/// that they speak. `files` have a certificate and outlive the context. False: OpenSSL refused.
bool ServeTls(ssl_ctx_st* context, TlsFiles* files);

/// A new store of the authorities of `material`, which the caller owns.
x509_store_st* MakeAuthorityStore(const TlsMaterial& material);

}  // namespace weir
