"""Name what is in an image, with an exported model and nothing of hwnas.

    python onnxruntime_ten_lines.py model.onnx image.png

How to prepare the image and what the classes are called is in the model file itself.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["hwnas"])
how, crop = about["preprocessing"], about["preprocessing"]["crop"]
image = Image.open(sys.argv[2])
if image.mode.startswith("I;16"):  # 16 bits, which Pillow would clip to white
    image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
image = image.convert(how["channels"])
size = [int(how["resize"] * side / min(image.size)) for side in image.size]
left, top = (round((side - crop) / 2) for side in size)
image = image.resize(size, Image.Resampling[how["interpolation"].upper()])
x = np.asarray(image.crop((left, top, left + crop, top + crop))).reshape(1, crop, crop, -1)
if how["input"] == "float32 NCHW":  # else the graph does this itself
    if how["size"] != crop:
        sys.exit("this network scales its input: hwnas export --embed-preprocessing")
    x = ((x / 255 - how["mean"]) / how["std"]).transpose(0, 3, 1, 2).astype(np.float32)
(logits,) = session.run(None, {session.get_inputs()[0].name: x})
print(about["classes"][logits[0].argmax()])
