# SPDX-License-Identifier: Apache-2.0
"""The web page before a real training on emulated hosts: it shows the switch that the network caused."""
import unittest

import page_tools
from cluster import FAST_MBPS, REFUSED, SKIP_REASON, SLOW_MBPS, Cluster

DIRECTORY, MISSING = page_tools.browser_tools()
TIMEOUT_S = 240


@unittest.skipIf(MISSING, MISSING)
@unittest.skipIf(REFUSED, SKIP_REASON)
class PageTest(unittest.TestCase):

    def test_shows_a_training_whose_network_changes(self):
        with Cluster("page") as cluster:
            cluster.start_ranks()
            cluster.wait_for_steps(40)
            known = {decision["id"] for decision in cluster.decisions()}
            cluster.network.shape(SLOW_MBPS, 0.0)
            switch = cluster.wait_for_switch(known, "bandwidth")
            cluster.wait_for_steps(20)
            known = {decision["id"] for decision in cluster.decisions()}
            cluster.network.shape(FAST_MBPS, 0.0)
            cluster.wait_for_switch(known)
            status, output = page_tools.run(
                "live.test.mjs", DIRECTORY, TIMEOUT_S, WEIR_PAGE_URL=cluster.controls.url,
                WEIR_PAGE_SUMMARY=switch["summary"])
            self.assertEqual(status, 0, output[-8000:])


if __name__ == "__main__":
    unittest.main()
