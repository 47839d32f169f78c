"""Ops the CPU target runs in the epilogue of the linear before them.

A value that only the fused op reads is never written to memory: the gated activation of the gate-up
product, or the activation of an MLP without a gate, and the residual sum after attention and MLP.
"""

from collections import Counter
from dataclasses import replace

from llmc.plugins.graph import Network, OpCall


def fuse(network: Network) -> Network:
    """Return the network with what follows a `linear` merged into it: activation or plain sum.

    A fused activation is the linear's attribute `fused_activation`, with `fused_half` the activated
    half of a gated one (None: not gated); a fused residual is its second input.
    """
    readers = Counter(value for call in network.ops for value in call.inputs)
    readers.update(network.outputs)
    written_by: dict[str, int] = {}
    ops: list[OpCall] = []
    for call in network.ops:
        fused = None
        for value in call.inputs:
            place = written_by.get(value)
            if place is not None and readers[value] == 1 and ops[place].plugin == "linear":
                fused = _merge(ops[place], call, value)
            if fused is not None and place is not None:
                # The merged op runs where the second did: by then all its inputs are written.
                ops[place] = replace(ops[place], plugin="fused")
                break
        for value in call.outputs:
            written_by[value] = len(ops)
        ops.append(fused or call)
    return replace(network, ops=tuple(call for call in ops if call.plugin != "fused"))


def _merge(linear: OpCall, call: OpCall, value: str) -> OpCall | None:
    if len(linear.inputs) > 1 or "fused_activation" in linear.attrs:
        return None
    if call.plugin in ("activation", "gated_activation"):
        fused = {
            "fused_activation": call.attrs["activation"],
            "fused_half": call.attrs.get("activated_half"),
        }
        return replace(linear, outputs=call.outputs, attrs=linear.attrs | fused)
    if call.plugin == "add" and call.inputs[0] != call.inputs[1] and call.attrs["scale"] == 1:
        residual = next(name for name in call.inputs if name != value)
        return replace(linear, inputs=(*linear.inputs, residual), outputs=call.outputs)
    return None
