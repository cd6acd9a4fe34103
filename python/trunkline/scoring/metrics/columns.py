"""Lists of numbers, one list for each task, in eight bytes a number: a run may have millions of tries."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from collections.abc import Iterable


class RaggedColumn(Sequence[Sequence[float]]):
    """Lists of numbers, to be read like a list of lists."""

    def __init__(self, lists: Iterable[Iterable[float]] = ()) -> None:
        self._values = array("d")
        self._ends = array("q")
        for one in lists:
            self.append(one)

    def append(self, numbers: Iterable[float]) -> None:
        """Add a list."""
        self._values.extend(numbers)
        self._ends.append(len(self._values))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> Sequence[float]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Sequence[float]]: ...
    def __getitem__(self, place: int | slice) -> Sequence[float] | Sequence[Sequence[float]]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        return self._values[self._ends[place - 1] if place else 0 : self._ends[place]]

    def __iter__(self) -> Iterator[Sequence[float]]:
        start = 0
        for end in self._ends:
            yield self._values[start:end]
            start = end


class NestedColumn(Sequence[Sequence[Sequence[float]]]):
    """Lists of lists of numbers, as the rewards of each initial chain of each task are."""

    def __init__(self) -> None:
        self._lists = RaggedColumn()
        self._ends = array("q")

    def append(self, lists: Iterable[Iterable[float]]) -> None:
        """Add a list of lists."""
        for one in lists:
            self._lists.append(one)
        self._ends.append(len(self._lists))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> Sequence[Sequence[float]]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Sequence[Sequence[float]]]: ...
    def __getitem__(self, place: int | slice) -> Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        return self._lists[self._ends[place - 1] if place else 0 : self._ends[place]]
