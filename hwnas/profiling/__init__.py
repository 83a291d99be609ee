"""Latency, throughput and memory of models on real devices, and how far to trust them.

Needs numpy and a runtime only: no torch and no onnx package. May import `hwnas.spaces`,
`hwnas.io` and `hwnas.errors`.

`driver.profile` measures many architectures into a profile; `profiles` reads, merges and compares
them; `packs` carries models to a device; `explain.explain` shows where a model's time goes.
"""
