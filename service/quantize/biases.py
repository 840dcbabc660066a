"""Expands the bias of each Gemm to one number per channel.

If weights have a scale per channel, onnxruntime requires such a bias. It also ignores the attribute
`beta` of Gemm, a factor of the bias, so this pass multiplies the bias by `beta`.

    Gemm(x, w, b), b: () or (1,) or (1, channels)  ->  Gemm(x, w, b'), b': (channels,)
    Gemm(x, w, b), b: (rows, ...)                  ->  Add(Gemm(x, w), b)
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.service.quantize.names import fresh


def expand_biases(graph: onnx.GraphProto) -> None:
    """Expand each constant bias of a Gemm with constant weights to the shape (channels,).

    A bias with several rows becomes a separate Add node.

    Args:
        graph: is changed in place; its nodes must have names.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    kinds = {info.name: info.type for info in (*graph.value_info, *graph.output)}
    taken = {*constants, *kinds, *(value for node in graph.node for value in node.output)}
    taken.update(node.name for node in graph.node)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        bias = constants.get(node.input[2]) if node.op_type == "Gemm" and node.input[2:] else None
        weight = constants.get(node.input[1]) if bias is not None else None
        if bias is None or weight is None:
            continue
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        channels = weight.dims[0 if given.get("transB") else 1]
        beta = given.get("beta", 1.0)
        if list(bias.dims) == [channels] and beta == 1:
            continue
        array = numpy_helper.to_array(bias)
        array = array * array.dtype.type(beta)
        for each in node.attribute:
            if each.name == "beta":
                each.f = 1.0
        name = fresh(f"{node.name}.bias", taken)
        if array.ndim < 2 or array.shape[0] == 1:
            array = np.broadcast_to(array.reshape(-1), (channels,))
            node.input[2] = name
        else:
            (output,) = node.output
            product = fresh(f"{output}.product", taken)
            if output in kinds:
                graph.value_info.add(name=product, type=kinds[output])
            del node.input[2:]
            node.output[0] = product
            nodes.append(helper.make_node("Add", [product, name], [output], name))
            taken.add(product)
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        taken.add(name)
    del graph.node[:]
    graph.node.extend(nodes)
