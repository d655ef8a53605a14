# SPDX-License-Identifier: Apache-2.0
"""A Tofino switch, as far as p4/tna needs one: the part of TNA that has to do with what a program computes. Nothing
here knows of stages, of the width of a stateful ALU, or of how many fields fit a packet's header vector: only a
compiler for Tofino can say whether a program fits.
"""
import machine
from machine import FREE, Scope, WORD, bit
from records import PacketIn, PacketOut, Record, TooShort
from switch import NoMatch, Switch
from syntax import P4Error

INVALID_PORT = 511
RECIRCULATION_PORT = 68
PASSES_MAX = 4


class TnaTranslator(machine.Translator):
    """Also understands Register, RegisterAction, Counter, Checksum and the metadata of TNA."""

    EXTERN_TYPES = ("packet_in", "packet_out")
    INTRINSIC = {
        "ingress_intrinsic_metadata_t": (("ingress_port", 9),),
        "ingress_intrinsic_metadata_from_parser_t": (("parser_err", 16),),
        "ingress_intrinsic_metadata_for_deparser_t": (("drop_ctl", 3),),
        "ingress_intrinsic_metadata_for_tm_t": (("ucast_egress_port", 9), ("mcast_grp_a", 16), ("bypass_egress", 1)),
        "egress_intrinsic_metadata_t": (("egress_rid", 16), ("egress_port", 9)),
        "egress_intrinsic_metadata_from_parser_t": (("parser_err", 16),),
        "egress_intrinsic_metadata_for_deparser_t": (("drop_ctl", 3),),
        "egress_intrinsic_metadata_for_output_port_t": (),
    }

    def __init__(self, declarations):
        self.register_actions, self.checksums, self.pipe = {}, set(), None
        super().__init__(declarations)

    def declare(self, node):
        if node.kind == "instance" and node.type.name == "Pipeline":
            self.pipe = [argument.function.name for argument in node.arguments]
        elif node.kind == "instance" and node.type.name == "Switch":
            if self.pipe is None or node.name != "main":
                raise P4Error(f"{node.where}: expected main of a Pipeline")
            self.main = self.pipe
        else:
            super().declare(node)

    def type(self, node):
        if node.name == "PortId_t":
            return bit(9)
        return super().type(node)

    def control_part(self, node, part, names):
        full = f"{node.name}.{part.name}"
        kind = part.type.name if part.kind == "instance" else ""
        if kind == "Register":
            self.registers[full] = (self.width(part.type.arguments[0]), self.constant_value(part.arguments[0]))
        elif kind == "Counter":
            self.counters[full] = self.constant_value(part.arguments[0])
        elif kind == "Checksum":
            self.checksums.add(full)
        elif kind == "RegisterAction":
            self.register_action(node, part, full, names)
        else:
            super().control_part(node, part, names)

    def register_action(self, node, part, full, names):
        """A function of what the register has: (what it has then, the result)."""
        register = f"{node.name}.{part.arguments[0].name}"
        if register not in self.registers:
            raise P4Error(f"{part.where}: no register {register}")
        stored, index, result = (bit(self.width(t)) for t in part.type.arguments)
        if stored != bit(self.registers[register][0]) or index != bit(32) or len(part.methods) != 1:
            raise P4Error(f"{part.where}: {part.name} does not fit its register")
        method = part.methods[0]
        own = {p.name: self.type(p.type) for p in method.parameters}
        expected = [stored, result][:len(own)]
        if method.name != "apply" or list(own.values()) != expected or method.parameters[0].direction != "inout":
            raise P4Error(f"{method.where}: expected apply(inout T value, out U result)")
        value, *out = own
        self.register_actions[full] = (register, result if out else None)
        self.put(0, f"def {node.name}__{part.name}({', '.join(list(names) + [value])}):")
        if out:
            self.put(1, f"{out[0]} = undefined_.bits({result[1]})")
        self.block([method.body], Scope({**names, **own}, node.name), 1)
        self.put(1, f"return {value}, {out[0] if out else None}")

    def execute(self, node, scope):
        """The text that runs a RegisterAction, and the type of its result; None where this is none."""
        function = node.function
        if function.kind != "member" or function.name != "execute" or function.object.kind != "name":
            return None
        full = f"{scope.control}.{function.object.name}"
        if full not in self.register_actions:
            raise P4Error(f"{node.where}: no RegisterAction {full}")
        register, result = self.register_actions[full]
        index = self.fitted(node, self.expression(node.arguments[0], scope), bit(32))
        shared = "".join(f"{name}, " for name in self.shared[scope.control])
        call = f"{scope.control}__{function.object.name}"
        return result, f"execute_(externs_[{register!r}], {index}, lambda value_: {call}({shared}value_))"

    def on_call(self, node, scope):
        found = self.execute(node, scope)
        if found is not None:
            if found[0] is None:
                raise P4Error(f"{node.where}: this RegisterAction has no result")
            return found
        function = node.function
        if function.kind == "name" and function.name in ("max", "min"):
            kind, one, two = self.unified(node, *(self.expression(a, scope) for a in node.arguments))
            return kind, f"{function.name}({one}, {two})"
        if function.kind == "member" and function.name == "update" and function.object.kind == "name" \
                and f"{scope.control}.{function.object.name}" in self.checksums:
            fields = [self.expression(item, scope) for item in node.arguments[0].items]
            return bit(16), f"checksum16_(({', '.join(f'({code}, {kind[1]})' for kind, code in fields)}))"
        return super().on_call(node, scope)

    def on_binary(self, node, scope):
        if node.sign != "|-|":
            return super().on_binary(node, scope)
        kind, one, two = self.unified(node, self.expression(node.left, scope), self.expression(node.right, scope))
        if kind[0] not in (WORD, FREE):
            raise P4Error(f"{node.where}: |-| of {kind}")
        return kind, f"max(0, {one} - {two})"

    def do_run(self, node, scope, depth):
        call = node.call
        if call.function.kind == "member":
            if call.function.name == "execute":
                return self.put(depth, self.execute(call, scope)[1])
            if call.function.name == "advance":
                return None  # over the port's metadata, which frames here do not have
            if call.function.name == "extract" and call.arguments[0].kind == "name":
                kind, _ = self.expression(call.arguments[0], scope)
                if kind[0] in self.INTRINSIC:
                    return None  # filled in by the switch
        return super().do_run(node, scope, depth)


def execute(register, index, action):
    """One read-modify-write."""
    value, result = action(register.read(index))
    register.write(index, value)
    return result


class TnaSwitch(Switch):
    """One pipe. A frame at the recirculation port passes ingress again at once, as the next one."""

    TRANSLATOR = TnaTranslator
    PARTS = ("parser", "ingress", "ingress_deparser", "egress_parser", "egress", "egress_deparser")

    def __init__(self, path, seed=1):
        self.lose_recirculated = 0  # for tests: the number of results to lose next,
        self.lost = []              # and the lost ones
        super().__init__(path, seed)
        self.functions["execute_"] = execute
        main = self.program.main
        self.egress_structs = self.struct_of(main[3], 1), self.struct_of(main[3], 2)

    def intrinsic(self, kind, **values):
        record = Record()
        for name, _ in self.program.INTRINSIC[kind]:
            setattr(record, name, values.get(name, 0))
        return record

    @staticmethod
    def run_parser(parser, *arguments):
        """Whether the frame was as long as its headers."""
        state = "start"
        try:
            while state not in ("accept", "reject"):
                state = parser[state](*arguments)
        except (TooShort, NoMatch):
            return False
        return state == "accept"

    def send(self, port, frame):
        for _ in range(PASSES_MAX):
            copies, frame, bypass = self.through_ingress(port, frame)
            port = RECIRCULATION_PORT
            if [out for _, out in copies] != [RECIRCULATION_PORT]:
                return [one for rid, out in copies for one in self.through_egress(rid, out, frame, bypass)]
            if self.lose_recirculated > 0:
                self.lose_recirculated -= 1
                self.lost.append(frame)
                return []
        raise AssertionError(f"a frame that passes ingress more than {PASSES_MAX} times")

    def through_ingress(self, port, frame):
        """Copies as (number, port) pairs, the frame, and whether it bypasses egress."""
        self.clock.packet += 1
        hdr, meta = self.records(self.header_struct, self.meta_struct)
        intrinsic = self.intrinsic("ingress_intrinsic_metadata_t", ingress_port=port)
        packet = PacketIn(frame)
        whole = self.run_parser(self.parser, packet, hdr, meta, intrinsic)
        parsed = self.intrinsic("ingress_intrinsic_metadata_from_parser_t", parser_err=0 if whole else 2)
        deparser = self.intrinsic("ingress_intrinsic_metadata_for_deparser_t")
        manager = self.intrinsic("ingress_intrinsic_metadata_for_tm_t", ucast_egress_port=INVALID_PORT)
        self.ingress(hdr, meta, intrinsic, parsed, deparser, manager)
        out = PacketOut()
        self.ingress_deparser(out, hdr, meta, deparser)
        copies = []
        if deparser.drop_ctl & 1 == 0:
            if manager.ucast_egress_port != INVALID_PORT:
                copies.append((0, manager.ucast_egress_port))
            for _, node in self.groups.get(manager.mcast_grp_a, ()) if manager.mcast_grp_a else ():
                copies += [(self.nodes[node][0], port) for port in self.nodes[node][1]]
        return copies, b"".join(out.parts) + packet.rest(), manager.bypass_egress

    def through_egress(self, rid, port, frame, bypass):
        if bypass:
            return [(port, frame)]
        hdr, meta = self.records(*self.egress_structs)
        intrinsic = self.intrinsic("egress_intrinsic_metadata_t", egress_rid=rid, egress_port=port)
        packet = PacketIn(frame)
        self.run_parser(self.egress_parser, packet, hdr, meta, intrinsic)
        parsed = self.intrinsic("egress_intrinsic_metadata_from_parser_t")
        deparser = self.intrinsic("egress_intrinsic_metadata_for_deparser_t")
        self.egress(hdr, meta, intrinsic, parsed, deparser,
                    self.intrinsic("egress_intrinsic_metadata_for_output_port_t"))
        out = PacketOut()
        self.egress_deparser(out, hdr, meta, deparser)
        return [] if deparser.drop_ctl & 1 else [(port, b"".join(out.parts) + packet.rest())]
