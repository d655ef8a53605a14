# SPDX-License-Identifier: Apache-2.0
"""A training whose sums the aggregator's kernel makes: the policy leaves checksums to the network."""
import re
import unittest

from cluster import REFUSED, SKIP_REASON, Cluster, wait_until
from demo_job import offload
from demo_job.network import run

HOSTS = 3
POLICY = """name: sums-in-the-kernel
jobs: ["*"]
objective: {name: fixed, codec: identity, collective: switchml}
aggregation: {checksums: false}
"""
PATIENCE_S = 60.0
SUMMED = re.compile(r'^weir_aggregator_kernel_packets_total\{outcome="(?:added|completed)".*\} (\S+)$',
                    re.MULTILINE)


@unittest.skipIf(REFUSED, SKIP_REASON)
class KernelTest(unittest.TestCase):

    def test_a_policy_without_checksums_has_ranks_summed_in_the_kernel(self):
        with Cluster("aggregator-kernel", HOSTS, 50_000, aggregator=True, policy=POLICY,
                     aggregator_flags=("--xdp", "e0", "--xdp-mode", "generic")) as cluster:
            # In generic mode the program must get single datagrams, neither joined nor still to be
            # cut.
            hosts = cluster.network
            for host, port, what in ((hosts.aggregator, "e0", "gro"),
                                     (hosts.router, "pa", "tx-udp-segmentation")):
                run("ip", "netns", "exec", host, "ethtool", "-K", port, what, "off")
            cluster.start_ranks()

            def summed():
                metrics = cluster.controls.aggregator_metrics() or ""
                return sum(float(value) for value in SUMMED.findall(metrics))
            for _ in range(3):
                before = summed()
                wait_until(lambda: summed() > before + 1000, "sums of the kernel", PATIENCE_S,
                           cluster.failed_rank)
            leases = wait_until(lambda: cluster.controls.aggregator().get("leases"),
                                "the controller to know of the lease", PATIENCE_S)
            self.assertEqual([lease["plane"] for lease in leases], ["xdp"])
            self.assertFalse(any(line["skipped"] for line in cluster.steps()))
            self.assertEqual(offload.summed_packets(cluster.controls.aggregator_metrics()), 0)


if __name__ == "__main__":
    unittest.main()
