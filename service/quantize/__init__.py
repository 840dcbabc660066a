"""Quantisation of models to 8 and 4 bits, with its loss of accuracy and its savings.

`onnxruntime.quantization` quantises the model. This package reports how far the result is from the
float32 model, layer by layer and as a whole (Tilewright runs both), how much time it saves on the
device, and which layers should stay in float32. `run.quantize` is the entry point.
"""
