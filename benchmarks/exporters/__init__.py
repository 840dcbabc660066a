"""Programs that make ONNX models with other libraries' exporters, one per group of libraries.

Each file runs in an environment with its libraries: `python -m benchmarks.exporters.classic FOLDER
NAME...` writes FOLDER/NAME/model.onnx, and next to it feeds.npz with the inputs of a few runs (keys
RUN/INPUT). benchmarks/data/real_models/exported.json lists the names and the packages. Parameters
are random with fixed seeds, or fitted to seeded random data, so nothing is downloaded.
"""
