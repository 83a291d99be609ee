"""Made-up profiles: what tests of predictors and of reports take for measurements; quick ones."""

import json
from collections.abc import Sequence

from hwnas.profiling.profiles import Profile, best_records
from hwnas.profiling.records import Device, Header, Latency, Record, Settings
from hwnas.profiling.sampling import arch_document
from hwnas.spaces import Arch, Space

NANO = ("profile", "--space", "nano")
QUICK = ("--force", "--no-memory", "--max-seconds", "0.1")


def made_up_profile(
    device: str,
    values: Sequence[tuple[Arch, float]],
    *,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
    backend: str = "onnxruntime",
    space: Space | None = None,
) -> Profile:
    """Return a profile of a device that measured these latencies in milliseconds.

    `space`: where its options are unusual, the architectures state them.
    """
    header = Header(
        device=Device(
            name=device, fingerprint=f"fingerprint of {device}", cpu=device, cores=2,
            memory_mb=1000, architecture="x", os="y",
        ),
        runtimes={backend: "1"},
        created_at=0.0,
    )  # fmt: skip
    records = [
        Record(
            arch=arch.to_json() if space is None else arch_document(space, arch),
            backend=backend,
            backend_version="1",
            settings=settings,
            measured_at=float(number),
            latency=_latency(value),
            grade="A",
        )
        for number, (arch, value) in enumerate(values)
    ]
    return Profile(header=header, records=best_records(records))


def _latency(value: float) -> Latency:
    return Latency(
        samples_ms=[value], median_ms=value, p90_ms=value, p99_ms=value, n=1, kept_share=1.0,
        preempted=0, half_width=0.001, clock="wall", privilege="fifo",
    )  # fmt: skip


def samples_in(profile: bytes) -> list[list[float]]:
    """Return what each line of a profile measured; at which level it is told may change later."""
    lines = [json.loads(line) for line in profile.splitlines()[1:]]
    return [line["latency"]["samples_ms"] for line in lines]
