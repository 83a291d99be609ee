"""Taking ONNX files apart and describing weights."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.errors import FormatError
from hwnas.io import onnxwire
from hwnas.io.onnxwire import BFLOAT16, FLOAT, FLOAT16, INT8, UINT8, Tensor
from hwnas.profiling.weights import Spec, generate
from hwnas.testing.onnx_models import conv_stack

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODEL = conv_stack(width=8)
SMALLEST_NORMAL = {FLOAT: 2.0**-126, BFLOAT16: 2.0**-126, FLOAT16: 2.0**-14}

tensors = st.builds(
    lambda name, shape: Tensor(
        name=name, dtype=FLOAT, shape=shape, raw=b"\x01" * 4 * int(np.prod(shape))
    ),
    name=st.text(min_size=1, max_size=9),
    shape=st.lists(st.integers(1, 5), max_size=4).map(tuple),
)


@unhurried
@given(st.lists(tensors, max_size=4, unique_by=lambda tensor: tensor.name))
def test_added_tensors_are_found_again(added):
    empty = onnxwire.without(MODEL, {tensor.name for tensor in onnxwire.initializers(MODEL)})
    assert onnxwire.initializers(empty) == []
    assert onnxwire.initializers(onnxwire.with_tensors(empty, added)) == added


@unhurried
@given(st.integers(0, 2**63 - 1))
def test_numbers_survive(number):
    encoded = onnxwire.tag(3, 0) + onnxwire.encoded_varint(number)
    (field,) = onnxwire.fields(memoryview(encoded))
    assert (field.number, field.integer) == (3, number)


@unhurried
@given(st.binary(max_size=200))
def test_garbage_is_refused_or_read_but_never_crashes(garbage):
    try:
        onnxwire.initializers(garbage)
    except FormatError:
        return


@unhurried
@given(st.integers(1, len(MODEL) - 1))
def test_a_cut_model_is_refused(length):
    try:
        found = onnxwire.initializers(MODEL[:length])
    except FormatError:
        return
    # Cut between two fields of the model itself, after its graph: nothing is missing but versions.
    assert len(found) == len(onnxwire.initializers(MODEL))


@unhurried
@given(
    st.text(max_size=8),
    st.sampled_from([FLOAT, FLOAT16, BFLOAT16]),
    st.integers(1, 3000),
    st.sampled_from(["normal", "positive"]),
    st.floats(0.01, 2.0),
)
def test_generated_floats_are_never_zero_nor_denormal(name, dtype, size, rule, scale):
    spec = Spec(name=name, dtype=dtype, shape=(size,), rule=rule, scale=scale)
    made = generate(spec)
    assert made == generate(spec)
    values = onnxwire.floats(made)
    assert values.shape == (size,)
    assert np.isfinite(values).all()
    assert np.abs(values).min() >= SMALLEST_NORMAL[dtype]
    if rule == "positive":
        assert values.min() > 0


@unhurried
@given(st.sampled_from([INT8, UINT8]), st.integers(1, 1000))
def test_generated_integers_are_never_zero(dtype, size):
    made = generate(Spec(name="q", dtype=dtype, shape=(size,), rule="integers"))
    values = np.frombuffer(made.raw, np.int8 if dtype == INT8 else np.uint8)
    assert values.shape == (size,)
    assert (values != 0).all()
    assert (values != -128).all() or dtype == UINT8
