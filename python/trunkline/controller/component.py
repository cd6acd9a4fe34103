"""Parts of the controller, and the events of a run's workers that they are told of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.protocol.backend import WorkerExited
    from trunkline.protocol.messages import Batch


class DeathReport(NamedTuple):
    """A dead worker's tasks, free or guilty with their deaths; ``known`` if a suspect must be the cause."""

    free: list[int]
    guilty: dict[int, list[str]]
    known: bool


class Death(NamedTuple):
    """The end of a worker with unfinished tasks; ``expected`` says whether the run ends anyway, without a successor."""

    exited: WorkerExited
    tasks: list[int]
    report: DeathReport
    expected: Callable[[], bool]


class Component:
    """A part of the controller: it overrides the events that concern it, and takes the messages that it ``handles``."""

    handles: ClassVar[tuple[type, ...]] = ()

    def on_ready(self, worker_id: int, slots: int) -> None:
        """A worker is up, and takes so many tasks at a time."""

    def on_message(self, worker_id: int, message: Any) -> None:
        """A worker sent a message of a type in ``handles``."""

    def on_commit(self, worker_id: int, batch: Batch, seconds: float) -> None:
        """A batch of a worker is in the run file; the commit took so many seconds."""

    def on_lost(self, worker_id: int, death: Death) -> None:
        """A worker is gone; all that it had sent was handled before."""

    def on_end(self) -> None:
        """The run is over."""


class Components:
    """Calls components for the events that they override, in their order; ``handlers`` take messages by type."""

    def __init__(self, components: Sequence[Component]) -> None:
        self.ready = _overridden(components, "on_ready")
        self.commit = _overridden(components, "on_commit")
        self.lost = _overridden(components, "on_lost")
        self.end = _overridden(components, "on_end")
        self.handlers: dict[type, Callable[[int, Any], None]] = {}
        for component in components:
            for kind in component.handles:
                assert kind not in self.handlers, f"two components handle {kind.__name__}"
                self.handlers[kind] = component.on_message


def _overridden(components: Sequence[Component], event: str) -> Callable[..., None]:
    """Return a function that calls every component which overrides an event."""
    calls = [getattr(each, event) for each in components if getattr(type(each), event) is not getattr(Component, event)]

    def tell(*event: object) -> None:
        for call in calls:
            call(*event)

    return tell
