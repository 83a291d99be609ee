"""The whole way once: train a small supernet, search it for this machine, export and validate.

    python examples/demo.py [RUN]

Takes Fashion-MNIST where it can be had, else scikit-learn's digits. Killed and started again, it
goes on.
"""

import os
import sys

from hwnas.errors import HwnasError
from hwnas.training.data import DataSettings, load_data

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/demo"
try:
    load_data(DataSettings(name="fashion-mnist"))
    recipe = "nano-fashion"
    print("demo: with Fashion-MNIST", flush=True)
except KeyboardInterrupt:
    sys.exit(130)
except HwnasError as error:
    recipe = "nano-digits"
    print(f"demo: with scikit-learn's digits ({error})", flush=True)
# On a slow machine there is less of everything; a demo may run on a busy one.
command = ["run", recipe, "--run", folder, "--within", "5min", "--force"]
# In place of this process: Ctrl-C is for `hwnas run` alone, which needs a moment to keep its state.
os.execv(sys.executable, [sys.executable, "-m", "hwnas", *command])
