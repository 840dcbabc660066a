"""Compile a tree ensemble of LightGBM, exported to ONNX with onnxmltools. Needs both packages.

python examples/gradient_boosting.py
"""

from __future__ import annotations

import lightgbm
import numpy as np
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType

import tilewright

FEATURES = 12


def main() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2000, FEATURES)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + 0.1 * random.standard_normal(2000)
    trees = lightgbm.LGBMRegressor(n_estimators=60, random_state=0, verbose=-1).fit(
        x[:1500], y[:1500]
    )
    model = convert_lightgbm(trees, initial_types=[("x", FloatTensorType([None, FEATURES]))])
    executable = tilewright.compile_model(model.SerializeToString(), dims={"x[0]": "1..1000"})
    (found,) = executable.run({"x": x[1500:]})
    wanted = trees.predict(x[1500:])
    error = np.abs(found.reshape(-1) - wanted).max() / np.abs(wanted).max()
    print(f"{len(wanted)} predictions within {error:.1e} of the largest")
    if error > 1e-4:
        raise SystemExit("the compiled trees disagree with LightGBM")


if __name__ == "__main__":
    main()
