"""Models in 8 and 4 bits, and the loss and the savings.

`onnxruntime.quantization` quantises the model. This package reports how far the result is from the
float32 model, layer by layer and as a whole (Tilewright runs both), how much time it saves on the
device, and which layers should stay in float32. `run.quantize` is the entry point.
"""
