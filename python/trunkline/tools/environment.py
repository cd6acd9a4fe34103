"""The protocol of a state that tools of one rollout share: made fresh, kept in snapshots, restored at forks."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Final

from trunkline._internal.text import describe_error, printable
from trunkline._internal.validation import check_bool, check_float, check_int, short_repr
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from trunkline.types import Task

_METHODS: Final = ("fresh", "snapshot", "restore", "stepped", "final_info", "close")


class Environment:
    """State of one rollout: a notebook, a maze, a browser, a container.

    Derive a class, give it to ``Agent(environment=...)``, and annotate a parameter of a tool with it: the tool gets
    the environment of the rollout that calls it, and the model never hears of the parameter. Calls of one turn that
    take the environment run one after the other, in call order.

    It is made without arguments, and holds nothing until either ``fresh`` or ``restore`` is awaited, once. From
    then on ``close`` is certain. A rollout that forks in the middle gets the state of its fork point: from a
    snapshot where there is one, else by running the recorded calls again, whose observations must be those on record.

    Attributes:
        replay: Whether calls that run again on a fresh environment lead to the same state. Say no for what also depends
            on anything else: the time, remote servers.
        timeout: Seconds that each of the methods may take.
        snapshots: How many snapshots of a tree are kept; the least recently used are dropped. 0 takes none.
        snapshot_bytes: Bytes of a tree's snapshots that are kept. A snapshot that is not bytes counts in
            ``snapshots`` alone.
        task_seed: A number that follows from the run's seed and the task, for what an environment draws by chance: all
            rollouts of a task have the same, so that a fork finds what its source found.

    Raises:
        ConfigError: When a class is derived: a method is not ``async``, or an attribute has a value it cannot have.
    """

    replay: ClassVar[bool] = True
    timeout: ClassVar[float] = 60.0
    snapshots: ClassVar[int] = 256
    snapshot_bytes: ClassVar[int] = 64 << 20
    task_seed: int = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _METHODS:
            if not inspect.iscoroutinefunction(getattr(cls, name)):
                raise ConfigError(f"environment {cls.__name__}: {name} must be a method written with `async def`")
        check_bool(f"environment {cls.__name__}: replay", cls.replay)
        check_float(f"environment {cls.__name__}: timeout", cls.timeout, 0, above=True, unit="seconds")
        for name in ("snapshots", "snapshot_bytes"):
            check_int(f"environment {cls.__name__}: {name}", getattr(cls, name), 0)

    async def fresh(self, task: Task) -> None:
        """Make the state in which a rollout begins.

        Args:
            task: What the rollout tries to solve.
        """

    async def snapshot(self) -> Any:
        """Return the state of now: bytes, or any object that does not change with the environment.

        Returns:
            What ``restore`` takes, in the same process; None where no snapshot can be made.
        """
        return None

    async def restore(self, snapshot: Any) -> None:
        """Make the state that a snapshot was taken of; it may be restored more than once.

        Args:
            snapshot: What ``snapshot`` of another environment of the same tree returned.
        """
        raise NotImplementedError(f"{type(self).__name__} has snapshot() and no restore()")

    async def stepped(self) -> tuple[float | None, bool, bool] | None:
        """Say what the step was worth that the tool calls of a turn have just made, and whether it was the last one.

        It is asked after the calls of every turn, once, also when these run again at a fork, where it must return the
        same. In a program it is also asked after each tool of the environment that the program runs itself; what that
        earns belongs to the latest turn.

        Returns:
            ``(reward, terminated, truncated)``, as ``step`` of a Gymnasium environment has them; None for no reward and
            a rollout that goes on. The reward is a number within 1e100 of 0, or None where there is none. A rollout
            that is terminated ends as ``answer``, without one; one that is truncated ends as ``max_turns``.
        """
        return None

    async def final_info(self) -> dict[str, Any] | None:
        """Return facts about the final state, which stay with the rollout as ``trajectory.final_info``.

        It is asked once, when the rollout has ended otherwise than by an error or a cut, before it is scored.

        Returns:
            A dict that JSON can hold, of 64 KiB at most and 64 levels deep; NaN and infinities become null. None for
            no facts.
        """
        return None

    async def close(self) -> None:
        """Let go of everything; nothing is asked of the environment after that."""


def make(environment: Any) -> Environment:
    """Make an environment; ConfigError where a class or a function makes none."""
    expected = "Agent: environment must be a class derived from Environment, or a function that returns one"
    if not callable(environment):
        raise ConfigError(f"{expected}, not {short_repr(environment)}")
    try:
        made = environment()
    except Exception as problem:
        name = printable(getattr(environment, "__qualname__", type(environment).__name__))
        what = describe_error(problem)
        raise ConfigError(f"Agent: environment {name} cannot be made without arguments: {what}") from problem
    if not isinstance(made, Environment):
        raise ConfigError(f"{expected}; what it returns is {short_repr(made)}")
    return made


def kind_of(environment: Any) -> type[Environment] | None:
    """Return the class of the environments that a class or a function makes; None for None."""
    if environment is None:
        return None
    kind: type[Environment] = environment if isinstance(environment, type) else type(make(environment))
    return getattr(kind, "_kind_in_pool", kind)  # of a pool, that of its environments


def rewards_steps(environment: Any) -> bool:
    """Whether the environments that a class or a function makes give rewards for steps; False for None."""
    kind = kind_of(environment)
    return kind is not None and kind.stepped is not Environment.stepped
