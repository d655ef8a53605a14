# SPDX-License-Identifier: Apache-2.0
"""The web page in headless Chromium before a controller with a simulated fleet: tests/e2e/page/*.mjs."""
import unittest

import page_tools

DIRECTORY, MISSING = page_tools.browser_tools()
FIXTURE = page_tools.BUILD / "tests" / "e2e" / "weir-page-fixture"
TIMEOUT_S = 240


@unittest.skipIf(MISSING, MISSING)
class PageViewsTest(unittest.TestCase):

    def run_script(self, script):
        status, output = page_tools.run(script, DIRECTORY, TIMEOUT_S, WEIR_PAGE_FIXTURE=str(FIXTURE))
        self.assertEqual(status, 0, output[-8000:])

    def test_every_view_in_both_schemes_and_by_keyboard(self):
        self.run_script("views.test.mjs")

    def test_a_long_job_opens_at_once_on_a_slow_computer(self):
        self.run_script("speed.test.mjs")

    def test_what_if_policies_and_tokens(self):
        self.run_script("forms.test.mjs")


if __name__ == "__main__":
    unittest.main()
