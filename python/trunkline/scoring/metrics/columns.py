"""Lists of numbers, one list for each task, in eight bytes a number: a run may have millions of tries."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class _Column(Sequence[T], Generic[T]):
    """Parts of one sequence, by where each ends."""

    _values: Any

    def __init__(self) -> None:
        self._ends = array("q")

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        found: T = self._values[self._ends[place - 1] if place else 0 : self._ends[place]]
        return found

    def __iter__(self) -> Iterator[T]:
        start = 0
        for end in self._ends:
            yield self._values[start:end]
            start = end


class RaggedColumn(_Column[Sequence[float]]):
    """Lists of numbers, to be read like a list of lists."""

    def __init__(self, lists: Iterable[Iterable[float]] = ()) -> None:
        super().__init__()
        self._values = array("d")
        for one in lists:
            self.append(one)

    def append(self, numbers: Iterable[float]) -> None:
        self._values.extend(numbers)
        self._ends.append(len(self._values))


class NestedColumn(_Column[Sequence[Sequence[float]]]):
    """Lists of lists of numbers, as the rewards of each initial chain of each task are."""

    def __init__(self) -> None:
        super().__init__()
        self._values = RaggedColumn()

    def append(self, lists: Iterable[Iterable[float]]) -> None:
        for one in lists:
            self._values.append(one)
        self._ends.append(len(self._values))
