"""What is written beside plain fp32: pixels in, other precisions, other opsets; and the checks."""

import numpy as np
import onnx
import onnxruntime
import pytest

import hwnas
from hwnas.errors import GateError, UsageError
from hwnas.export import onnx_from_description, to_onnx
from hwnas.export.checks import check_difference, check_model, parity_limit
from hwnas.export.graph import OPSETS
from hwnas.export.metadata import METADATA_KEY
from hwnas.export.onnx import module_bytes
from hwnas.export.precisions import PRECISIONS, Form, build
from hwnas.export.reference import relative_difference
from hwnas.io.preprocessing import Preprocessing
from hwnas.nets import build_network

NANO = hwnas.space("nano", channels=3, classes=10)
NETWORK = NANO.network(NANO.smallest())
MODULE = build_network(NETWORK).eval()
SIDE = NETWORK.side


def preprocessing(crop: int = SIDE) -> Preprocessing:
    return Preprocessing(
        size=SIDE, crop=crop, resize=crop, interpolation="bicubic", mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.3), channels="RGB",
    )  # fmt: skip


def squares(count: int = 3, crop: int = SIDE) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, crop, crop, 3), dtype=np.uint8)


def run(model: bytes, images: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images})[0]


def built(precision: str, *, pixels: Preprocessing | None = None, batch: int | None = None,
          opset: int = 17) -> bytes:  # fmt: skip
    how = pixels or preprocessing()

    def calibration():
        part = squares(batch or 3, how.crop)
        return [part if pixels else how.normalise(part)]

    form = Form(opset=opset, batch=batch, pixels=pixels)
    return build(MODULE, precision, form=form, metadata={METADATA_KEY: "x"},
                 calibration=calibration)  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("crop", [SIDE, SIDE + 4])
def test_pixels_in_the_graph_are_the_preprocessing_outside(precision, crop):
    how = preprocessing(crop)
    inside, outside = built(precision, pixels=how), built(precision)
    check_model(inside, opset=17, batch=None, origin="it")
    pixels = squares(crop=crop)
    expected = run(outside, how.normalise(pixels))
    limit = {"fp32": 1e-5, "fp16": 2e-3}.get(precision, 0.1)
    assert relative_difference(run(inside, pixels), expected) < limit
    graph = onnx.load_model_from_string(inside).graph
    taken = graph.input[0].type.tensor_type
    assert taken.elem_type == onnx.TensorProto.UINT8
    assert [dim.dim_value for dim in taken.shape.dim][1:] == [crop, crop, 3]


def test_preprocessing_for_another_network_is_refused():
    how = Preprocessing(
        size=SIDE, crop=SIDE, resize=SIDE, interpolation="bicubic", mean=(0.5,), std=(0.5,),
        channels="L",
    )  # fmt: skip
    with pytest.raises(UsageError, match="1 channels"):
        module_bytes(MODULE, pixels=how)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("opset", [OPSETS.start, OPSETS.stop - 1])
def test_every_precision_is_valid_in_every_opset(precision, opset):
    model = built(precision, opset=opset)
    check_model(model, opset=opset, batch=None, origin="it")
    expected = run(built("fp32"), preprocessing().normalise(squares()))
    found = run(model, preprocessing().normalise(squares()))
    assert relative_difference(found, expected) < parity_limit(precision)
    assert onnx.load_model_from_string(model).metadata_props[0].value == "x"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_fixed_batch_is_fixed(precision):
    model = built(precision, batch=2)
    check_model(model, opset=17, batch=2, origin="it")
    with pytest.raises(GateError, match="is for batch 2, asked for any"):
        check_model(model, opset=17, batch=None, origin="it")
    assert run(model, preprocessing().normalise(squares(2))).shape == (2, 10)


def changed(change) -> bytes:
    model = onnx.load_model_from_string(onnx_from_description(NETWORK))
    change(model)
    return model.SerializeToString()


def add_weight(model):
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.zeros(3, np.float32), "nobody/reads")
    )


def add_node(model):
    model.graph.node.add(op_type="Relu", name="idle", input=["images"], output=["unused"])


def add_domain(model):
    model.opset_import.add(domain="com.example", version=1)


def swap_nodes(model):
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))


def store_outside(model):
    tensor = next(one for one in model.graph.initializer if len(one.raw_data) > 64)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add_weight, "1 weights nobody reads, such as 'nobody/reads'"),
        (add_node, "1 nodes nobody reads, such as 'idle'"),
        (add_domain, "com.example"),
        (swap_nodes, "not valid ONNX"),
        (store_outside, "not valid ONNX|other files"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(change, message):
    with pytest.raises(GateError, match=message):
        check_model(changed(change), opset=17, batch=None, origin="it")


def test_another_opset_is_noticed():
    with pytest.raises(GateError, match="asked for opset 18"):
        check_model(onnx_from_description(NETWORK), opset=18, batch=None, origin="it")


@pytest.mark.parametrize("difference", [2e-4, float("inf"), float("nan")])
def test_logits_that_differ_are_refused(difference):
    with pytest.raises(GateError, match="logits differ"):
        check_difference(difference, parity_limit("fp32"), origin="it")


def test_the_file_is_the_bytes(tmp_path):
    to_onnx(MODULE, tmp_path / "model.onnx", pixels=preprocessing())
    assert (tmp_path / "model.onnx").read_bytes() == module_bytes(MODULE, pixels=preprocessing())
