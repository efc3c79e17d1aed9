"""Tensors of any size, in messages of a bounded one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# (number of the tensor, first element, end)
Piece = tuple[int, int, int]


def in_pieces(elements: Sequence[int], most: int) -> Iterator[list[Piece]]:
    """Runs of pieces with at most `most` elements together, in order, that cover tensors of so many elements.

    >>> list(in_pieces([2, 2, 7, 1], most=4))
    [[(0, 0, 2), (1, 0, 2)], [(2, 0, 4)], [(2, 4, 7), (3, 0, 1)]]
    """
    run: list[Piece] = []
    room = most
    for number, size in enumerate(elements):
        first = 0
        while first < size:
            end = min(size, first + room)
            run.append((number, first, end))
            room -= end - first
            first = end
            if not room:
                yield run
                run, room = [], most
    if run:
        yield run
