"""Which model was measured: one network can be written in several forms, and forms differ in speed.

The digest of a model's graph is stored with its measurement. Values of weights have no part in it:
latency does not depend on them, and they are generated, trained or folded anew.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hwnas.errors import FormatError
from hwnas.io import canonical_json, onnxwire
from hwnas.profiling.backends import backend
from hwnas.profiling.jobs import BUILD_ERRORS, Job
from hwnas.profiling.profiles import Profile
from hwnas.profiling.records import ArchJson, Key, Record, Settings, network_of
from hwnas.profiling.weights import Spec

# Integers that say how something is done: shapes, axes, indices. Other values are weights.
_VALUES_COUNT = (7, 9)  # TensorProto.DataType: int64, bool
_INITIALIZER, _NODE, _INPUT, _OUTPUT, _SPARSE = 5, 1, 11, 12, 15
_OF_THE_WRITER = (3, 6, 9)  # of a node: its name, remarks, metadata
_FUNCTION = 25


@dataclass(frozen=True, kw_only=True, slots=True)
class Graphs:
    """How the graphs of models that are to be measured are known.

    `of` returns the digest of a model's graph. Where that costs as much as building the model it is
    `costly`: whoever builds models builds all of them in one form, so a few of a space and
    precision are looked at first, and the others only if one of these differs.
    """

    of: Callable[[ArchJson, Settings], str | None]
    costly: bool = False


def graph_digest(model: bytes, generated: Iterable[Spec] = ()) -> str:
    """Return what identifies the graph of an ONNX file; `generated` are weights it is to be given.

    Raises FormatError for what is no ONNX file.
    """
    ordered = [canonical_json(onnxwire.opsets(model)).encode()]
    tensors = [_described(spec.name, spec.dtype, spec.shape) for spec in generated]
    for field in onnxwire.fields(memoryview(model)):
        if field.number == _FUNCTION:
            ordered.append(bytes(field.encoded))
    for field in onnxwire.graph_fields(model):
        if field.number == _NODE:
            ordered.append(_node(field.payload))
        elif field.number == _INITIALIZER:
            tensors.append(_tensor(field.payload))
        elif field.number in (_INPUT, _OUTPUT, _SPARSE):
            ordered.append(bytes(field.encoded))
    found = hashlib.sha256()
    for piece in [*ordered, *sorted(tensors)]:
        found.update(len(piece).to_bytes(8, "little") + piece)
    return found.hexdigest()


def graph_of(model: bytes) -> str | None:
    """Return the digest of a model's graph, None for what is no ONNX file."""
    try:
        return graph_digest(model)
    except FormatError:
        return None


def changed_models(jobs: Sequence[Job], known: Profile | None, graphs: Graphs | None) -> set[Key]:
    """Return the keys of what was measured of another model than the jobs ask for.

    Where a profile does not say what was measured, it is taken to be the same.
    """
    if known is None or graphs is None:
        return set()
    groups: dict[tuple[str, ...], list[tuple[Job, Record]]] = defaultdict(list)
    for job in {job.key: job for job in jobs}.values():
        record = known.records.get(job.key)
        if record is not None and record.graph is not None and backend(job.backend).takes == "onnx":
            groups[_kind(job)].append((job, record))
    look = _Looking(graphs)
    found = set[Key]()
    for pairs in groups.values():
        first = _telling(pairs) if graphs.costly else pairs
        if any(look.differs(job, record) for job, record in first):
            found |= {job.key for job, record in pairs if look.differs(job, record)}
    return found


def _telling(pairs: Sequence[tuple[Job, Record]]) -> list[tuple[Job, Record]]:
    """Return the few that show another form if any does.

    The ends of the jobs are the smallest and the largest of a space that is covered. A session that
    was to measure all of another form, and was killed, leaves old ones behind: these are the oldest
    or, where a board's clock was set back, the newest.
    """
    by_time = sorted(pairs, key=lambda pair: pair[1].measured_at)
    networks = {network_of(job.arch): (job, record) for job, record in reversed(pairs)}
    return [*list(networks.values())[-2:], by_time[0], by_time[-1]]


class _Looking:
    """Looks at models, at each but once."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._seen: dict[tuple[str, str], str | None] = {}

    def differs(self, job: Job, record: Record) -> bool:
        """Return whether the model of a job is known to be another than the one measured."""
        which = (network_of(job.arch), job.settings.precision)
        if which not in self._seen:
            try:
                self._seen[which] = self._graphs.of(job.arch, job.settings)
            except BUILD_ERRORS:  # told when it is measured
                self._seen[which] = None
        return self._seen[which] not in (None, record.graph)


def _kind(job: Job) -> tuple[str, ...]:
    options = canonical_json(job.arch.get("options", {}))
    return (str(job.arch.get("space")), options, job.settings.precision)


def _node(node: memoryview) -> bytes:
    parts = onnxwire.fields(node)
    return b"".join(bytes(part.encoded) for part in parts if part.number not in _OF_THE_WRITER)


def _tensor(message: memoryview) -> bytes:
    tensor = onnxwire.read_tensor(message)
    if tensor.dtype in _VALUES_COUNT:
        return bytes(message)
    return _described(tensor.name, tensor.dtype, tensor.shape)


def _described(name: str, dtype: int, shape: Sequence[int]) -> bytes:
    return canonical_json([name, dtype, list(shape)]).encode()
