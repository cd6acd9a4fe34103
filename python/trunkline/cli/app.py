"""The command group: lazy commands, and one place where errors become lines and exit codes."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from trunkline._internal.frames import users_traceback
from trunkline._internal.text import printable
from trunkline._internal.validation import did_you_mean
from trunkline.errors import InfrastructureError, TrunklineError

if TYPE_CHECKING:
    from types import FrameType

_COMMANDS = {
    "demo": ("trunkline.cli.demo:demo", "Run 200 questions, 4 tries each, on the embedded simulator."),
    "init": ("trunkline.cli.demo:init", "Write an example that runs at once: eval, rl or team."),
    "run": ("trunkline.cli.run:run", "Run an agent over a file of questions."),
    "resume": ("trunkline.cli.run:resume", "Go on with a run that was stopped, or killed."),
    "show": ("trunkline.cli.show:show", "Print a run's summary, or one of its trees."),
    "view": ("trunkline.cli.view:view", "Show a run as a web page, or write it as one file."),
    "events": ("trunkline.cli.view:events", "Print what happened in a run as lines of JSON, also while it runs."),
    "ctl": ("trunkline.cli.view:ctl", "Drain or stop a run that is under way."),
    "check": ("trunkline.cli.show:check", "Re-derive every row of a run from its deltas."),
    "recover": ("trunkline.cli.show:recover", "Write what is whole of a damaged run into a new file."),
    "migrate": ("trunkline.cli.show:migrate", "Bring a run file of an earlier version to the present one."),
    "score": ("trunkline.cli.post:score", "Score a finished run again, by another reward."),
    "report": ("trunkline.cli.post:report", "Write what each try came to into a run that is over."),
    "answers": ("trunkline.cli.post:answers", "Make one answer of what the tries of each question answered."),
    "compare": ("trunkline.cli.show:compare", "Compare two runs on the same tasks, task by task."),
    "export": ("trunkline.cli.post:export", "Write a run's rollouts for other programs."),
    "probe": ("trunkline.cli.demo:probe", "Find out what a server can do."),
    "probe-agent": (
        "trunkline.cli.demo:probe_agent",
        "Find out whether an agent asks the same when it is started again.",
    ),
    "sim": (
        "trunkline.cli.demo:sim",
        "The embedded world: write its files, serve its models, run a command beside them.",
    ),
}

_AGAIN = 0.01
"""Seconds after which a signal is sent again that was lost."""

_UNEXPECTED = 70

_EPILOG = """\b
Exit codes:
  0    done
  1    more rollouts broke than --fail-on-error allows, fewer groups were kept than --groups,
       or the run's budget or time left tasks that were not begun or cut tries; check found
       damage, score gave no try a value, answers or report got no usable reply
  2    a mistake in the call or its input files
  3    infrastructure: the endpoint, a worker, the disk
  70   an unexpected error, in trunkline or in code that it was given: the traceback says where
  130  interrupted (143 by SIGTERM, 129 by SIGHUP)"""


class _Lazy(click.Group):
    """Imports a command's module when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "bench":
            ctx.fail("bench is no command of the package any more: in a clone of the project, python benches/study.py")
        if cmd_name not in _COMMANDS:
            if (near := did_you_mean(cmd_name, _COMMANDS)) and not ctx.resilient_parsing:
                ctx.fail(f"No such command {printable(repr(cmd_name))}{near}")
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            # click would write a line break first; where the terminal has hung up, that error would hide the stop.
            raise click.Abort from stop

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from trunkline._core import __version__

        click.echo(f"trunkline {__version__}")
        ctx.exit()


@click.group(
    cls=_Lazy,
    epilog=_EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "TRUNKLINE",
        "max_content_width": 110,
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.option(
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Print the version."
)
def app() -> None:
    """LLM-agent rollouts in trees: many questions, many tries each, many processes.

    Every option can also be set in the environment: TRUNKLINE_RUN_MODEL is --model of run.
    """


def run_app(command: click.Command = app) -> NoReturn:
    """Run a command line, and exit with its code."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _terminate)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unraisable
    try:
        code = command.main(standalone_mode=False)
        sys.stdout and sys.stdout.flush()
    except (click.exceptions.Exit, SystemExit) as end:
        code = _exit_code(end)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "trunkline"
        _say(f"error: {error.format_message().rstrip('.')}; see {path} --help")
        code = error.exit_code
    except click.ClickException as error:
        _say(f"error: {error.format_message()}")
        code = error.exit_code
    except TrunklineError as error:
        _say(f"error: {error}")
        code = error.exit_code
    except BrokenPipeError:  # the reader of the output has left, as `| head` does
        code = 0
    except OSError as error:
        _say(f"error: {error}")
        code = InfrastructureError.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        # click turns a KeyboardInterrupt into an Abort, and keeps it as the cause.
        cause = stop if isinstance(stop, KeyboardInterrupt) else stop.__cause__ or stop.__context__
        _say(str(cause or "") or "interrupted")
        code = 128 + int(getattr(cause, "signum", 2))
    except Exception as error:  # noqa: BLE001 - with 1, which Python exits with, it would pass for problems found
        _say(*users_traceback(error).splitlines())
        code = _UNEXPECTED
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    sys.exit(code if isinstance(code, int) else 0)


def _flush(stream: TextIO | None) -> None:
    """Flush a stream, or discard what it cannot take: Python would exit with 120 where its own last flush fails."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


class _Terminated(KeyboardInterrupt):
    """A signal to end, raised so that resources are closed."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


def _terminate(signum: int, _frame: FrameType | None) -> None:
    raise _Terminated(signum)


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Send a signal again that arrived where nothing can be raised, as in weakref callbacks of imports."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signum = int(getattr(lost.exc_value, "signum", signal.SIGINT))
    threading.Thread(target=_send_again, args=(threading.main_thread().ident, signum), daemon=True).start()


def _send_again(thread: int, signum: int) -> None:
    """Send a signal to a thread once it is out of ``_unraisable``, where it would be lost again."""
    frame: FrameType | None
    while True:
        time.sleep(_AGAIN)
        frame = sys._current_frames().get(thread)
        while frame is not None and frame.f_code is not _unraisable.__code__:
            frame = frame.f_back
        if frame is None:
            break
    signal.pthread_kill(thread, signum)


def _exit_code(end: click.exceptions.Exit | SystemExit) -> int:
    """The code of an exit; one that carries a message prints it, as Python does."""
    code = end.exit_code if isinstance(end, click.exceptions.Exit) else end.code
    if code is None or isinstance(code, int):
        return code or 0
    _say(str(code))
    return 1


def _say(*lines: str) -> None:
    """Print lines to stderr, escaped and never wrapped; without a stderr, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        click.echo("\n".join(map(printable, lines)), err=True)
