"""Trigonometric and hyperbolic functions, and their inverses."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.loops import maths
from tilewright.compiler.ops.registry import Effort
from tilewright.compiler.ops.unary import plain

OPERATORS = (
    plain("sin", "Sin", np.sin, maths.sin, Effort.COSTLY),
    plain("cos", "Cos", np.cos, maths.cos, Effort.COSTLY),
    plain("tan", "Tan", np.tan, maths.tan, Effort.COSTLY),
    plain("asin", "Asin", np.arcsin, maths.asin, Effort.COSTLY),
    plain("acos", "Acos", np.arccos, maths.acos, Effort.COSTLY),
    plain("atan", "Atan", np.arctan, maths.atan, Effort.COSTLY),
    plain("sinh", "Sinh", np.sinh, maths.sinh, Effort.COSTLY),
    plain("cosh", "Cosh", np.cosh, maths.cosh, Effort.COSTLY),
    plain("tanh", "Tanh", np.tanh, maths.tanh, Effort.COSTLY),
    plain("asinh", "Asinh", np.arcsinh, maths.asinh, Effort.COSTLY),
    plain("acosh", "Acosh", np.arccosh, maths.acosh, Effort.COSTLY),
    plain("atanh", "Atanh", np.arctanh, maths.atanh, Effort.COSTLY),
)
