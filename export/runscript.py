"""The script that is written beside a model: a few lines of ONNX Runtime, numpy and Pillow."""

from hwnas.export.metadata import PIXELS, ModelMetadata

_HEAD = '''"""Classify images: python run.py IMAGE..."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from PIL import Image
'''
_SESSION = """
folder = Path(__file__).resolve().parent
settings = json.loads((folder / "ort_settings.json").read_text())
environment = {**os.environ, **settings["environment"]}
if environment != os.environ:  # is read when a process starts
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)
options = ort.SessionOptions()
for name, value in settings["options"].items():
    kind = type(getattr(options, name))
    setattr(options, name, getattr(kind, value) if isinstance(value, str) else value)
for name, value in settings["entries"].items():
    options.add_session_config_entry(name, value)
model = str((folder / settings["model"]).resolve())
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["hwnas"])
how = about["preprocessing"]
"""
_SQUARE = """

def square(image):
    if image.mode.startswith("I;16"):  # 16 bits, which Pillow would clip to white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        sys.exit("32 bits per pixel, of which no range is known")
    image = image.convert(how["channels"])
    short = min(image.size)
    if short != how["resize"]:
        size = [int(how["resize"] * side / short) for side in image.size]
        image = image.resize(size, Image.Resampling[how["interpolation"].upper()])
    left, top = (round((side - how["crop"]) / 2) for side in image.size)
    image = image.crop((left, top, left + how["crop"], top + how["crop"]))
    return np.asarray(image).reshape(how["crop"], how["crop"], -1)


"""
_PLANES = """def feed(pixels):
    values = (pixels / np.float32(255) - np.float32(how["mean"])) / np.float32(how["std"])
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32)


"""
_PIXELS = """def feed(pixels):
    return pixels  # the graph normalises itself


"""
# The network's own size is not the square's: scaling is a matrix, which hwnas brings.
_SCALED = """def feed(pixels):
    from hwnas.io.preprocessing import preprocessing_from

    return preprocessing_from(how, model).normalise(pixels)


"""
_MAIN = """for name in sys.argv[1:]:
    images = feed(square(Image.open(name))[None])
    logits = session.run(None, {session.get_inputs()[0].name: images})[0][0]
    shares = np.exp(logits - logits.max())
    best = int(logits.argmax())
    print(f"{name}: {about['classes'][best]} {shares[best] / shares.sum():.1%}")
"""


def run_script(metadata: ModelMetadata) -> str:
    """Return the text of the script for a model; a fixed batch is filled with the same image."""
    if metadata.input == PIXELS:
        feed = _PIXELS
    elif metadata.preprocessing.size == metadata.preprocessing.crop:
        feed = _PLANES
    else:
        feed = _SCALED
    main = _MAIN
    if metadata.batch is not None:
        main = main.replace("[None])", f"[None].repeat({metadata.batch}, axis=0))")
    return _HEAD + _SESSION + _SQUARE + feed + main
