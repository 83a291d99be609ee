"""Other precisions of a model: still the same network, roughly, and still plain ONNX."""

import logging

import numpy as np
import onnx
import onnxruntime
import pytest

import hwnas
from hwnas.errors import UsageError
from hwnas.export import onnx_from_description
from hwnas.export.quantise import quantise_dynamic, quantise_static, to_half

NETWORK = hwnas.space("nano").network(hwnas.space("nano").smallest())
PRODUCTS = onnx_from_description(NETWORK, linears="product", metadata={"key": "text"})
IMAGES = np.random.default_rng(0).standard_normal((5, 3, 24, 24)).astype(np.float32)


def logits(model: bytes) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": IMAGES})[0]


def static(model: bytes) -> bytes:
    return quantise_static(model, [IMAGES[:2], IMAGES[2:]])


@pytest.mark.parametrize(
    ("convert", "limit"), [(quantise_dynamic, 0.15), (static, 0.15), (to_half, 0.01)]
)
def test_a_precision_changes_numbers_a_little_and_nothing_else(convert, limit):
    converted = convert(PRODUCTS)
    expected, found = logits(PRODUCTS), logits(converted)
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < difference < limit
    assert len(converted) < 0.8 * len(PRODUCTS)
    before, after = (onnx.load_model_from_string(data) for data in (PRODUCTS, converted))
    assert after.graph.input == before.graph.input
    assert after.graph.output == before.graph.output
    assert after.metadata_props == before.metadata_props
    assert after.producer_name == "hwnas"
    assert {entry.domain for entry in after.opset_import} == {""}
    assert {node.domain for node in after.graph.node} == {""}


def test_all_linears_of_transformers_and_head_are_quantised():
    model = onnx.load_model_from_string(quantise_dynamic(PRODUCTS))
    blocks = ["t3_1", "t4_1"]
    linears = ["q", "k", "v", "project", "mlp1_first", "mlp1_second", "mlp2_first", "mlp2_second"]
    wanted = {f"{block}/{linear}" for block in blocks for linear in linears}
    wanted |= {"head/mix", "head/classify"}
    found = {node.name for node in model.graph.node if node.op_type == "MatMulInteger"}
    assert {name.removesuffix("_quant") for name in found} == wanted


@pytest.mark.parametrize("convert", [quantise_dynamic, static])
def test_linears_that_are_convolutions_are_refused(convert):
    with pytest.raises(UsageError) as caught:
        convert(onnx_from_description(NETWORK))
    assert 'linears="product"' in caught.value.hint


def test_static_quantisation_without_images_is_refused():
    with pytest.raises(UsageError, match="no batches"):
        quantise_static(PRODUCTS, [])


def test_the_runtime_says_nothing(caplog):
    with caplog.at_level(logging.INFO):
        quantise_dynamic(PRODUCTS)
        logging.getLogger().info("and others are still heard")
    assert [record.message for record in caplog.records] == ["and others are still heard"]
