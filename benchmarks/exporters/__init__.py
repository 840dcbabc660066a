"""Makers of ONNX models in libraries with an exporter, one file per family of libraries.

Each file is run in an environment that has its libraries: `python -m benchmarks.exporters.classic
FOLDER NAME...` writes FOLDER/NAME/model.onnx, and next to it feeds.npz with the inputs of a few
runs (RUN/INPUT). benchmarks/data/real_models/exported.json lists the names and the packages.
Parameters
are seeded and random, or fitted to seeded data: nothing is downloaded.
"""
