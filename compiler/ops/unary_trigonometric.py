"""Trigonometric and hyperbolic functions, and their inverses."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.loops import maths
from tilewright.compiler.ops.registry import ElementCost
from tilewright.compiler.ops.unary import plain

OPERATORS = (
    plain("sin", "Sin", np.sin, maths.sin, ElementCost.COSTLY),
    plain("cos", "Cos", np.cos, maths.cos, ElementCost.COSTLY),
    plain("tan", "Tan", np.tan, maths.tan, ElementCost.COSTLY),
    plain("asin", "Asin", np.arcsin, maths.asin, ElementCost.COSTLY),
    plain("acos", "Acos", np.arccos, maths.acos, ElementCost.COSTLY),
    plain("atan", "Atan", np.arctan, maths.atan, ElementCost.COSTLY),
    plain("sinh", "Sinh", np.sinh, maths.sinh, ElementCost.COSTLY),
    plain("cosh", "Cosh", np.cosh, maths.cosh, ElementCost.COSTLY),
    plain("tanh", "Tanh", np.tanh, maths.tanh, ElementCost.COSTLY),
    plain("asinh", "Asinh", np.arcsinh, maths.asinh, ElementCost.COSTLY),
    plain("acosh", "Acosh", np.arccosh, maths.acosh, ElementCost.COSTLY),
    plain("atanh", "Atanh", np.arctanh, maths.atanh, ElementCost.COSTLY),
)
