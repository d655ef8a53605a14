// SPDX-License-Identifier: Apache-2.0
// Where a step's wall-clock time goes. Pure.

import {number} from "./format.js";

// Parts that add up to the step. Encoding, network and decoding overlap with each other and with the
// backward pass; of what stayed exposed each gets the share that it was busy.
export function parts(point) {
  const step = number(point.step_s);
  const compute = Math.min(step, number(point.compute_s) + number(point.backward_s));
  const exposed = Math.min(step - compute, number(point.exposed_s));
  const busy = {
    encode: number(point.encode_s),
    network: number(point.network_s),
    decode: number(point.decode_s)
  };
  const sum = busy.encode + busy.network + busy.decode;
  const share = (name) => (sum > 0 ? (exposed * busy[name]) / sum :
          name === "network"       ? exposed :
                                     0);
  return {
    compute,
    encode: share("encode"),
    network: share("network"),
    decode: share("decode"),
    wait: step - compute - exposed
  };
}
