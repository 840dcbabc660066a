"""Serve an artifact over HTTP with FastAPI: `ARTIFACT=folder uvicorn examples.serve:app`.

curl localhost:8000/run -d '{"x": [[0.1, 0.2]]}' -H 'content-type: application/json'
"""

import os
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException

from tilewright import ort

app = FastAPI(title="one model")
session = ort.InferenceSession(os.environ["ARTIFACT"])
names = [each.name for each in session.get_outputs()]


@app.post("/run")
def run(inputs: dict[str, Any]) -> dict[str, Any]:
    """Run the model on inputs from JSON, and return its outputs by name.

    FastAPI calls this function in several threads at once. `InferenceSession` supports this.
    """
    try:
        outputs = session.run(None, inputs)
    except (ort.InvalidArgument, ValueError, TypeError) as error:
        raise HTTPException(422, str(error)) from error
    return {name: np.asarray(each).tolist() for name, each in zip(names, outputs, strict=True)}
