"""Physical layouts: splitting and order of the logical axes of a tensor in memory.

A layout such as NCHW16c, packed weights or padded rows is a list of factors (`Factor`) from the
outermost to the innermost. Each factor is a logical axis or a part of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.compiler.memo import memo

MAX_LANE_STEP = 4
"""Maximum distance in elements between adjacent lanes of a load that reads whole vectors and
permutes their elements. More distant lanes are read one by one. Schedules and the costs of layouts
depend on this limit."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One physical axis of a layout: a part of the index along a logical axis.

    The position along the axis is `(logical[dim] + halo) // div % mod`, where `halo` is the number
    of border elements before the logical axis. `mod` is None for the outermost part of the logical
    axis. `pad` is a number of unused elements after the end of the physical axis. Padding changes
    the addresses of the slices of the next outer factor, so that the slices do not compete for the
    same cache sets.
    """

    dim: int
    div: int = 1
    mod: int | None = None
    pad: int = 0

    def __str__(self) -> str:
        text = f"{self.dim}"
        text += f"/{self.div}" if self.div != 1 else ""
        text += f"%{self.mod}" if self.mod is not None else ""
        return text + (f"+{self.pad}" if self.pad else "")


@dataclass(frozen=True, slots=True)
class Layout:
    """A split and order of the logical axes of a tensor: factors from outermost to innermost.

    `Layout(())` is row-major for a tensor of any rank.
    """

    factors: tuple[Factor, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.factors))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:  # the hash of None differs between processes
        return Layout, (self.factors,)

    def __str__(self) -> str:
        return " ".join(map(str, self.factors)) or "row"

    @staticmethod
    def parse(text: str) -> Layout:
        """Parse the text of a layout, as `str(layout)` returns it.

        For example, `0/16 1 2 0%16` has four physical axes: axis 0 in blocks of 16, axes 1 and 2,
        and the positions within a block of axis 0. `row` is the row-major layout.
        """
        if text.strip() == "row":
            return ROW_MAJOR
        return Layout(tuple(_parse_factor(part) for part in text.split()))

    def resolved(self, rank: int) -> tuple[Factor, ...]:
        """Return the factors for a tensor of this rank.

        The empty layout gives one factor per dimension, in row-major order.
        """
        return self.factors or tuple(Factor(dim) for dim in range(rank))


ROW_MAJOR = Layout()


def blocked(rank: int, dim: int, block: int) -> Layout:
    """Return a layout that splits axis `dim` by `block`, with the inner part innermost.

    For example, NCHW becomes NCHW16c.
    """
    outer = tuple(Factor(d, block if d == dim else 1) for d in range(rank))
    return Layout((*outer, Factor(dim, 1, block)))


def physical_extents(
    shape: tuple[int, ...], layout: Layout, halo: tuple[tuple[int, int], ...] = ()
) -> tuple[int, ...]:
    """Return the number of elements along each factor of a layout.

    `halo` has the numbers of border elements (before, after) for each dimension of `shape`. If a
    block does not divide the extent of an axis, the outer factor counts the last, partial block.
    """
    extents = []
    for factor in layout.resolved(len(shape)):
        size = shape[factor.dim] + (sum(halo[factor.dim]) if halo else 0)
        extents.append(factor.mod or -(-size // factor.div))
    return tuple(extents)


@memo(4096)
def strides(
    shape: tuple[int, ...], layout: Layout, halo: tuple[tuple[int, int], ...] = ()
) -> tuple[tuple[int, ...], int]:
    """Return the stride of each factor and the size of the tensor, in elements.

    Strides and size include the padding, the unused part of partial blocks, and the halo. `halo`
    has the numbers of border elements (before, after) for each dimension of `shape`.
    """
    result: list[int] = []
    stride = 1
    factors = layout.resolved(len(shape))
    for factor, extent in zip(
        reversed(factors), reversed(physical_extents(shape, layout, halo)), strict=True
    ):
        result.append(stride)
        stride = stride * extent + factor.pad
    return tuple(reversed(result)), stride


def _parse_factor(text: str) -> Factor:
    text, _, pad = text.partition("+")
    text, _, mod = text.partition("%")
    dim, _, div = text.partition("/")
    return Factor(int(dim), int(div or 1), int(mod) if mod else None, int(pad or 0))
