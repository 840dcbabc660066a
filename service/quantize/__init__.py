"""Models in 8 and 4 bits, and what that costs and saves.

The quantising is `onnxruntime.quantization`'s. What is here says how far the result is from the
float32 model, layer by layer and as a whole (Tilewright runs both), what time it saves on the
device, and which layers had better stay in float32. `run.quantize` is the way in.
"""
