"""Every error that reaches a caller, but for Interrupted (a KeyboardInterrupt), in one tree.

TrunklineError
+ UsageError (ValueError)        the caller's mistake; the command line exits with 2
|   + InputError                 a file of questions, or another input file: names path and line
|   + ConfigError                an option or a setting
|   + CrossingError              something that cannot be sent to a worker process
|   + RunFileError               a run file that exists, is foreign, or of another version
|       + DamagedRunFile         its bytes are not those that were written; exits with 3
+ InfrastructureError            not the model's fault and not the caller's; exits with 3
|   + EndpointError              the endpoint refuses us: key, model, quota, or unreachable
|   + WorkerError                a worker did not start or broke the protocol
+ RolloutError                   ends one rollout and never its batch; kept as data
|   + LLMError                   the model gave no usable reply within its attempts
|   |   + BadRequest             the endpoint refused the request itself
|   |   + ContextTooLong         the conversation no longer fits the model
|   |   + ContentFiltered        the provider withheld the reply
|   + ToolError                  raised by a tool to say something to the model
|   |   + EnvironmentFailed      the state that tools work on could not be made
|   |   + BeforeToolFailed       the hook that may refuse a call of a tool failed
|   + ForkRefused                the state that tools had at a fork point cannot be had again
|   + ProgramError               a program used its rollout in a way that cannot be
|   |   + ReplayDiverged         run again, a program did something else than its record says
|   + CallFailed                 what a program called through its rollout raised
|   + UnknownEffect              a tool with side effects may have run, and is not run again
+ RunFailed                      more rollouts broke than fail_on_error allows; has the run
+ CoreError                      the native core refused an operation
    + TreeError                  on a tree: bad id, finished rollout, corrupt delta
    + ArgumentError (ValueError) a number, option or column that the core cannot work with
    + ReplyError (ValueError)    bytes that are no chat completion, and where

BrokenRolloutsWarning (UserWarning) is no error: a run in which rollouts broke ends with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ArgumentError",
    "BadRequest",
    "BeforeToolFailed",
    "BrokenRolloutsWarning",
    "CallFailed",
    "ConfigError",
    "ContentFiltered",
    "ContextTooLong",
    "CoreError",
    "CrossingError",
    "DamagedRunFile",
    "EndpointError",
    "EnvironmentFailed",
    "ForkRefused",
    "InfrastructureError",
    "InputError",
    "LLMError",
    "ProgramError",
    "ReplayDiverged",
    "ReplyError",
    "RolloutError",
    "RunFailed",
    "RunFileError",
    "StrategyError",
    "ToolError",
    "TreeError",
    "TrunklineError",
    "UnknownEffect",
    "UsageError",
    "WorkerError",
    "copied",
]


_E = TypeVar("_E", bound=Exception)


def copied(error: _E) -> _E:
    """Return a copy of an exception, to be raised elsewhere with a traceback of its own.

    It is not made by calling the class, which may be a user's and take other arguments.
    """
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made


class TrunklineError(Exception):
    """Root of every error this library raises."""

    exit_code: ClassVar[int] = 1


class UsageError(TrunklineError, ValueError):
    """The caller asked for something that cannot be done; the message says what to do instead."""

    exit_code = 2


class InputError(UsageError):
    """An input file cannot be used.

    Args:
        message: What is wrong and what to do.
        path: The file, as the caller named it.
        line: One-based line, where one is known.
    """

    def __init__(self, message: str, path: str = "", line: int | None = None) -> None:
        place = path if line is None else f"{path}:{line}"
        super().__init__(f"{place}: {message}" if place else message)
        self.path = path
        self.line = line


class ConfigError(UsageError):
    """An option or a setting has a value it cannot have."""


class CrossingError(UsageError):
    """Something cannot be handed to a worker process; the message names it."""


class RunFileError(UsageError):
    """A run file cannot be created or read."""


class DamagedRunFile(RunFileError):
    """A run file is damaged; the message says where, and what names all of it."""

    exit_code = 3


class InfrastructureError(TrunklineError):
    """Something around the run failed: an endpoint, a process, a disk."""

    exit_code = 3


class EndpointError(InfrastructureError):
    """The endpoint will not serve this run, however often it is asked."""


class WorkerError(InfrastructureError):
    """A worker process did not start, or did not keep to the protocol."""


class StrategyError(TrunklineError):
    """A strategy failed in the middle of a task. It ends that task, and no other."""


class RunFailed(TrunklineError):
    """More rollouts of a run broke than its option ``fail_on_error`` allows; raised after the run file was closed.

    Args:
        message: How many broke, the most frequent causes, and how to retry them.
        run: The run, a ``trunkline.Run``, with all that did not break.
    """

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run


class BrokenRolloutsWarning(UserWarning):
    """Rollouts of a run broke; the message has the most frequent causes and how to retry them."""


class RolloutError(TrunklineError):
    """Ends one rollout. It is recorded as data and never sinks the batch.

    Args:
        message: What happened, safe to print: no key, no unescaped model output.
        attempts: How many times the operation was tried.
        retryable: Whether trying again later could succeed.
    """

    # A user's subclass need not call __init__.
    attempts: int = 1
    retryable: bool = False
    blame: ClassVar[str] = "rollout"
    """What failed, in one word."""

    def __init__(self, message: str, *, attempts: int = 1, retryable: bool = False) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.retryable = retryable

    def shared(self) -> Self:
        """The same for one more rollout that it ends. The attempts were made once, and stay with this one."""
        made = copied(self)
        made.attempts = 1
        return made


class LLMError(RolloutError):
    """The model gave no usable reply within its attempts.

    Args:
        message: See ``RolloutError``, as for ``attempts`` and ``retryable``.
        endpoint: The endpoint that was asked last, as replies name it; empty if unknown.
        tries: What came of each attempt, a line each, as safe to print.
        evidence: The beginning of the last answer, likewise; empty without one.

    Attributes:
        separable: Whether the draws of a request for several may be asked for one by one: the server failed at one.
    """

    blame = "endpoint"
    endpoint: str = ""
    tries: Sequence[str] = ()
    evidence: str = ""
    separable: bool = False

    def __init__(
        self,
        message: str,
        *,
        attempts: int = 1,
        retryable: bool = False,
        endpoint: str = "",
        tries: Sequence[str] = (),
        evidence: str = "",
    ) -> None:
        super().__init__(message, attempts=attempts, retryable=retryable)
        self.endpoint = endpoint
        self.tries = tries
        self.evidence = evidence


class BadRequest(LLMError):
    """The endpoint refused the request itself (a 4xx that repeating cannot change)."""


class ContextTooLong(LLMError):
    """The conversation no longer fits the model's context."""


class ContentFiltered(LLMError):
    """The provider's filter withheld the request or the reply."""


class ToolError(RolloutError):
    """Raise it in a tool to tell the model what went wrong; the text becomes the observation."""

    blame = "tool"


class EnvironmentFailed(ToolError):
    """The environment of a rollout could not be made or restored: it failed, or took too long."""

    blame = "environment"


class BeforeToolFailed(ToolError):
    """The hook ``before_tool`` raised, took too long, or returned neither a call nor a text. It ends the rollout."""

    blame = "before_tool"


class ForkRefused(RolloutError):
    """A rollout cannot begin where it was to fork: the state of its tools there cannot be had again."""


class ProgramError(RolloutError):
    """A program used its rollout in a way that cannot be; the message says which. It ends that rollout."""

    blame = "program"


class ReplayDiverged(ProgramError):
    """Run again over its record, a program did something else than the record says; the message shows both."""


class CallFailed(RolloutError):
    """What a program called through its rollout raised; a replay raises the same.

    Args:
        message: The message of the error that was raised.
        kind: The class of that error.
    """

    def __init__(self, message: str, kind: str = "Exception") -> None:
        super().__init__(message)
        self.kind = kind


class UnknownEffect(RolloutError):
    """A call of a tool with side effects began, and it is not known whether it took effect: it is not run again."""


class CoreError(TrunklineError):
    """The native core refused an operation; nothing was changed."""


class TreeError(CoreError):
    """A tree cannot do this: an id names nothing, a rollout has ended, a delta does not fit."""


class ArgumentError(CoreError, ValueError):
    """A number, an option or a column that the core cannot work with; the message says which, and what it needs."""

    def add_note(self, note: str, /) -> None:
        """Add a note; the name of an argument, which the bindings note, is put before the message instead."""
        name = note.removeprefix("while processing '").removesuffix("'")
        if note == f"while processing '{name}'":
            self.args = (f"{name}: {self}",)
        else:
            super().add_note(note)


class ReplyError(CoreError, ValueError):
    """The body of a reply is no chat completion.

    Args:
        message: Which part of it, what is wrong and at which byte. It quotes next to nothing of the body.
        offset: The byte at which the fault starts.
    """

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset
