"""Compile a pipeline of scikit-learn, exported to ONNX with skl2onnx. Needs both packages.

python examples/scikit_learn.py
"""

from __future__ import annotations

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tilewright


def main() -> None:
    digits = load_digits()
    images, labels = digits.data.astype(np.float32), digits.target
    forest = RandomForestClassifier(n_estimators=20, max_depth=8, random_state=0)
    pipeline = make_pipeline(StandardScaler(), forest).fit(images[:1000], labels[:1000])
    model = to_onnx(pipeline, images[:1], options={"zipmap": False})
    executable = tilewright.compile_model(model.SerializeToString())  # any number of images
    found, probabilities = executable.run([images[1000:]])
    agreement = np.mean(found == pipeline.predict(images[1000:]))
    error = np.abs(probabilities - pipeline.predict_proba(images[1000:])).max()
    print(f"{agreement:.1%} of {len(found)} labels agree, probabilities within {error:.1e}")
    if agreement < 0.995:  # a float32 may compare differently with a threshold than a float64
        raise SystemExit("the compiled pipeline disagrees with scikit-learn")


if __name__ == "__main__":
    main()
