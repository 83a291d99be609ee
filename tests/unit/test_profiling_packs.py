import numpy as np
import onnx
import pytest

from hwnas.errors import FormatError
from hwnas.io import onnxparts, onnxwire
from hwnas.io.onnxwire import FLOAT, INT8, Tensor, Use
from hwnas.profiling.packs import stand_in
from hwnas.profiling.reference import reference_model
from hwnas.profiling.weights import Spec, describe, fan_in, generate
from hwnas.testing.onnx_models import conv_stack

INT64 = 7


def tensor(values, dtype=FLOAT, name="w"):
    values = np.asarray(values)
    return Tensor(name=name, dtype=dtype, shape=values.shape, raw=values.tobytes())


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_a_model_is_read_as_the_onnx_package_reads_it():
    content = conv_stack(width=8)
    expected = onnx.load_from_string(content).graph
    found = onnxwire.initializers(content)
    assert [t.name for t in found] == [t.name for t in expected.initializer]
    for mine, theirs in zip(found, expected.initializer, strict=True):
        assert mine.shape == tuple(theirs.dims)
        assert np.array_equal(onnxwire.floats(mine), onnx.numpy_helper.to_array(theirs).reshape(-1))
    assert [name for name, _ in onnxwire.nodes(content)] == [n.name for n in expected.node]


def test_uses_know_operator_position_and_transposition():
    found = onnxwire.uses(conv_stack(width=8))
    assert found["b0.weight"] == Use(operator="Conv", position=1)
    assert found["head.weight"] == Use(operator="Gemm", position=1, transposed=True)


def test_the_stand_in_is_the_same_graph_with_other_weights():
    original = onnx.load_from_string(conv_stack())
    rebuilt = onnx.load_from_string(stand_in(conv_stack()))
    onnx.checker.check_model(rebuilt, full_check=True)
    assert rebuilt.graph.node == original.graph.node
    assert rebuilt.opset_import == original.opset_import
    shapes = {t.name: (tuple(t.dims), t.data_type) for t in original.graph.initializer}
    assert {t.name: (tuple(t.dims), t.data_type) for t in rebuilt.graph.initializer} == shapes


def test_small_tensors_keep_their_values():
    content = conv_stack()
    rebuilt = {t.name: t for t in onnxwire.initializers(stand_in(content))}
    kept = [t for t in onnxwire.initializers(content) if t.size < 64]
    assert kept
    assert all(rebuilt[t.name].raw == t.raw for t in kept)


def test_a_deep_stand_in_neither_vanishes_nor_explodes():
    import onnxruntime

    model = onnx.load_from_string(stand_in(conv_stack(width=16, depth=60)))
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("a59"))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    images = np.random.default_rng(1).random((1, 3, 12, 12), dtype=np.float32)
    last = session.run(["a59"], {"images": images})[0]
    assert np.isfinite(last).all()
    assert 1e-4 < np.abs(last).mean() < 1e4
    assert np.abs(last[last != 0]).min() > 2.0**-126


@pytest.mark.parametrize(
    ("shape", "use", "expected"),
    [
        ((8, 4, 3, 3), Use(operator="Conv", position=1), 36),
        ((10, 16), Use(operator="Gemm", position=1, transposed=True), 16),
        ((16, 10), Use(operator="Gemm", position=1), 16),
        ((16, 10), Use(operator="MatMul", position=1), 16),
        ((4, 4), Use(operator="MatMul", position=0), 4),
        ((4, 9), Use(operator="Add", position=1), None),
        ((16,), Use(operator="Conv", position=2), None),
        ((16, 10), None, None),
    ],
)
def test_fan_in(shape, use, expected):
    assert fan_in(shape, use) == expected


def test_weights_are_scaled_by_their_fan_in():
    spec = describe(tensor(random(64, 100)), Use(operator="MatMul", position=1))
    values = onnxwire.floats(generate(spec))
    assert spec.rule == "normal"
    assert values.std() == pytest.approx(0.7 / 8, rel=0.05)
    assert abs(values.mean()) < 0.01


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (random(200), "normal"),
        (np.abs(random(200)) + 0.1, "positive"),
        (np.ones(200, np.float32), "constant"),
    ],
)
def test_rules_follow_the_values(values, rule):
    assert describe(tensor(values), None).rule == rule


def test_what_means_something_is_kept():
    mask = np.where(random(20, 20) > 0, 0, -1e9).astype(np.float32)
    infinite = random(200)
    infinite[3] = np.inf
    assert describe(tensor(mask), Use(operator="Add", position=1)) is None
    assert describe(tensor(infinite), None) is None
    assert describe(tensor(np.arange(500), dtype=INT64), None) is None
    assert describe(tensor(random(8)), None) is None


def test_quantised_weights_are_integers():
    values = np.arange(-100, 100, dtype=np.int8)
    assert describe(tensor(values, dtype=INT8), None).rule == "integers"


def test_the_same_recipe_gives_the_same_bytes_everywhere():
    import hashlib

    made = generate(Spec(name="w", dtype=FLOAT, shape=(3, 1000), rule="normal", scale=0.5))
    assert hashlib.sha256(made.raw).hexdigest()[:16] == "0839c8e77b086e6c"


def test_tensors_of_one_model_differ():
    one = generate(Spec(name="a", dtype=FLOAT, shape=(100,), rule="normal", scale=1.0))
    other = generate(Spec(name="b", dtype=FLOAT, shape=(100,), rule="normal", scale=1.0))
    assert one.raw != other.raw


def test_an_unknown_rule_is_refused():
    with pytest.raises(FormatError, match="cauchy"):
        generate(Spec(name="a", dtype=FLOAT, shape=(100,), rule="cauchy"))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08", b"\x3a\x7f", b"\xff" * 20])
def test_what_is_no_model_is_refused(content):
    with pytest.raises(FormatError, match="not an ONNX file"):
        onnxwire.initializers(content)


def test_weights_outside_the_file_are_refused():
    model = onnx.load_from_string(conv_stack())
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    with pytest.raises(FormatError, match="outside"):
        stand_in(model.SerializeToString())


def test_the_reference_model_is_valid():
    model = onnx.load_from_string(reference_model())
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Conv"] * 3


def test_models_are_put_together_as_the_onnx_package_does():
    attributes = {"a": 3, "b": "text", "c": [1, 200, 70_000], "d": [0.5, 2.0], "e": ["x", "y"]}
    theirs = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Op", ["x", "w"], ["y"], name="n", domain="d", **attributes)],
            "g",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("d", 2)],
        ir_version=8,
    )
    made = onnxparts.model(
        "g",
        [
            onnxparts.node(
                "Op", "n", inputs=["x", "w"], output="y", domain="d",
                attributes=[
                    onnxparts.integer("a", 3), onnxparts.text("b", "text"),
                    onnxparts.integers("c", [1, 200, 70_000]), onnxparts.floats("d", [0.5, 2.0]),
                    onnxparts.texts("e", ["x", "y"]),
                ],
            )
        ],
        inputs=[onnxparts.value("x", ("n", 3))],
        outputs=[onnxparts.value("y", (1,))],
        opsets={"": 17, "d": 2},
        ir_version=8,
    )  # fmt: skip
    assert onnx.load_from_string(made) == theirs
