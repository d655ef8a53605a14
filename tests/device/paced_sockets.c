// SPDX-License-Identifier: Apache-2.0
// Loaded before NCCL and gloo (LD_PRELOAD), lets the kernel pace every TCP connection that is made
// while a rate is set, as Weir's transport option `pacing` does for its own. It takes no
// privileges, unlike a shaped network, and works on loopback.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

static atomic_ullong rate;  // bytes per second of one connection; 0: no limit

void paced_sockets_rate(unsigned long long bytes_per_s) { atomic_store(&rate, bytes_per_s); }

static int pace(int fd, int domain, int type) {
  const uint64_t limit = atomic_load(&rate);
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0 && limit > 0 && kind == SOCK_STREAM && domain != AF_UNIX) {
    (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &limit, sizeof(limit));
  }
  return fd;
}

static int domain_of(int fd) {
  int domain = AF_UNIX;
  socklen_t size = sizeof(domain);
  (void)getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain;
}

int socket(int domain, int type, int protocol) {
  static int (*next)(int, int, int);
  if (next == NULL) next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
  return pace(next(domain, type, protocol), domain, type);
}

int accept(int fd, struct sockaddr* restrict address, socklen_t* restrict size) {
  static int (*next)(int, struct sockaddr*, socklen_t*);
  if (next == NULL) next = (int (*)(int, struct sockaddr*, socklen_t*))dlsym(RTLD_NEXT, "accept");
  return pace(next(fd, address, size), domain_of(fd), SOCK_STREAM);
}

int accept4(int fd, struct sockaddr* restrict address, socklen_t* restrict size, int flags) {
  static int (*next)(int, struct sockaddr*, socklen_t*, int);
  if (next == NULL) {
    next = (int (*)(int, struct sockaddr*, socklen_t*, int))dlsym(RTLD_NEXT, "accept4");
  }
  return pace(next(fd, address, size, flags), domain_of(fd), SOCK_STREAM);
}
