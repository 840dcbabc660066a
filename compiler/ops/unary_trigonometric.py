"""Trigonometric and hyperbolic functions, and their inverses."""

from __future__ import annotations

import numpy as np

from compiler.loops import maths
from compiler.ops.unary import plain

OPERATORS = (
    plain("sin", "Sin", np.sin, maths.sin),
    plain("cos", "Cos", np.cos, maths.cos),
    plain("tan", "Tan", np.tan, maths.tan),
    plain("asin", "Asin", np.arcsin, maths.asin),
    plain("acos", "Acos", np.arccos, maths.acos),
    plain("atan", "Atan", np.arctan, maths.atan),
    plain("sinh", "Sinh", np.sinh, maths.sinh),
    plain("cosh", "Cosh", np.cosh, maths.cosh),
    plain("tanh", "Tanh", np.tanh, maths.tanh),
    plain("asinh", "Asinh", np.arcsinh, maths.asinh),
    plain("acosh", "Acosh", np.arccosh, maths.acosh),
    plain("atanh", "Atanh", np.arctanh, maths.atanh),
)
