#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in the guest, inside the host's read-only root: two soft-RoCE devices that reach each other
# over a veth pair, then the tests of WEIR_BUILD on them. Each part ends with a line that
# verbs_vm.py reads.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C TMPDIR=/run HOME=/run
tests=$WEIR_BUILD/tests

# Addresses of one host would be reached over lo. So packets between these two are routed over the
# pair, and only what comes in from it is local; a large MTU gives RDMA its full 4096 octets.
network() {
  ip link set lo up
  ip link add va mtu 4200 type veth peer name vb mtu 4200
  for name in all va vb; do
    echo 1 > /proc/sys/net/ipv4/conf/$name/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/$name/rp_filter
  done
  ip addr add 10.0.0.1/32 dev va
  ip addr add 10.0.0.2/32 dev vb
  ip link set va up
  ip link set vb up
  ip route add 10.0.0.2/32 dev va src 10.0.0.1
  ip route add 10.0.0.1/32 dev vb src 10.0.0.2
  ip rule add pref 1 iif va lookup local
  ip rule add pref 2 iif vb lookup local
  ip rule add pref 3 to 127.0.0.0/8 lookup local
  ip rule del pref 0
  ip rule add pref 32000 lookup local
  rdma link add rxa type rxe netdev va && rdma link add rxb type rxe netdev vb
  rdma link show
}

# part NAME COMMAND...
part() {
  local name=$1 start=$SECONDS
  shift
  "$@"
  echo "weir-vm part $name rc=$? seconds=$((SECONDS - start))"
}

# Fails for a test that was skipped.
whole() {
  local log=/run/whole.log
  "$@" | tee $log
  [ "${PIPESTATUS[0]}" -eq 0 ] && grep -q '\[  PASSED  \] [1-9]' $log && ! grep -q SKIPPED $log
}

# Delays and loses packets in both directions.
impair() {
  for name in va vb; do tc qdisc replace dev $name root netem "$@" || return 1; done
}
mend() {
  for name in va vb; do tc qdisc del dev $name root; done
}

# Checks that the devices really used the impaired link.
over_the_wire() {
  local octets
  octets=$(cat /sys/class/net/va/statistics/tx_bytes)
  echo "$octets octets went over the wire"
  [ "$octets" -gt 50000000 ]
}

counters() {
  for device in rxa rxb; do
    for counter in completer_retry_err rcvd_seq_err send_rnr_err retry_exceeded_err duplicate_request \
        out_of_seq_request send_err; do
      echo -n "$device $counter $(cat /sys/class/infiniband/$device/ports/1/hw_counters/$counter 2>&1)  "
    done
    echo
  done
  cat /proc/net/softnet_stat
}

network || { echo "weir-vm part network rc=1 seconds=0"; exit 1; }
export WEIR_TEST_DEVICE_HOSTS=10.0.0.1,10.0.0.2
suite=$tests/datapath_transport_test
part conformance whole "$suite" --gtest_filter='*/verbs:Verbs*'
part conformance_under_fault whole "$suite" --gtest_filter='*/verbs_authenticated_fault'
part conformance_encrypted whole "$suite" --gtest_filter='*/verbs_encrypted'
part over_the_wire over_the_wire
part all_reduce "$tests/integration/verbs_vm_ranks" verbs 1000000 5 10.0.0.1:0 10.0.0.2:0 rxa:0 rxb:0
# One collective of each pattern of traffic: ring, pairs, star, gather. All of them would take the emulated machine
# 4 minutes.
part collectives whole "$tests/datapath_collective_test" \
  --gtest_filter='*/ring_verbs:*/halving_doubling_verbs:*/ps_star_verbs:*/ring_all_gather_verbs'
impair delay 1ms loss 0.5%
part lossy_wire whole "$suite" --gtest_filter='*Delivers*/verbs:*RandomTraffic*/verbs_encrypted:*Departed*/verbs_authenticated:*Keys*/verbs'
mend
export WEIR_TEST_DEVICE_CUT='for i in va vb; do tc qdisc replace dev $i root netem loss 100%; done'
part cut_wire whole "$suite" --gtest_filter='CutVerbs*'
echo "weir-vm end"
