"""Quantisation of models to 8 and 4 bits, with a report on lost accuracy and saved time.

`onnxruntime.quantization` quantises the model. The report states how far the outputs and each layer
deviate from the float32 model, how much time the quantised model saves on the device, and which
layers should stay in float32. Tilewright runs both models for this. `run.quantize` is the entry
point.
"""
