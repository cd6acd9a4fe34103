"""Recorded runs of the agent loop: dialects, tools, environments, limits, rewards, filters, caches, versions."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import openai
from agent_cases import scripted, scripted_agent, sim_agent, simulated
from appraisers import Counting, lengths
from judges import Breaking, Rewarded, Unlucky
from killed_runs import WORDS
from lines import Lines
from notebook import Notebook, Paper, look, look_and_tell
from players import Fixed, Missing, breaks, effective, failing, in_a_thread, in_parts, pure
from replies import Body, chatty, choice, completion, lost_in, says
from sim_engine import AsyncSimEngine, SimEngine
from stage import Stage
from table import case
from worlds import worth

import trunkline as tl
from trunkline.sim.tools import search

ONCE = ("digests", "trees")
"""What is recorded where equal requests may share a reply: how many do, and whose seed is sent, depends on the time."""

PLAIN = tl.Sampling(max_tokens=400)


def dialects() -> None:
    for name, dialect in {
        "native": "native",
        "hermes": "hermes",
        "hermes as a user": tl.llms.Hermes(role="user"),
        "hermes with instructions": tl.llms.Hermes(
            role="tool", instructions="Call {tools}\nin <tool_call></tool_call>."
        ),
    }.items():
        agent = sim_agent(dialect=dialect, system="Answer the question.", sampling=PLAIN)
        case(f"dialect {name}")(partial(simulated, strategy=tl.Chain(2), agent=agent))
    for keep in (True, False):
        tagged = sim_agent(model="sim-tagged", tools=[search], dialect=tl.llms.SearchR1(keep_stop=keep), sampling=PLAIN)
        case(f"dialect search-r1, stop {'kept' if keep else 'cut'}")(
            partial(simulated, strategy=tl.Chain(2), agent=tagged)
        )
    for malformed in ("return", "repair"):
        for dialect in ("native", "hermes"):
            agent = sim_agent(dialect=dialect, malformed=malformed, sampling=PLAIN)
            case(f"malformed calls, {dialect}, {malformed}")(
                lambda stage, agent=agent: simulated(
                    stage, tl.Chain(3), agent=agent, llm=stage.sim(dials={"malformed": 0.5})
                )
            )
    for reasoning in ("field", "dropped"):
        case(f"reasoning {reasoning}")(
            lambda stage, reasoning=reasoning: simulated(
                stage, tl.Chain(2), agent=sim_agent(sampling=PLAIN), llm=stage.sim(reasoning=reasoning)
            )
        )


dialects()


def spoken(body: Body, nth: int) -> Body:
    """A model that speaks the dialect of ``lines``, one call or two a turn."""
    told = [message["content"] for message in body["messages"] if message["content"].startswith("RESULT ")]
    if len(told) > 1:
        return says(f"<answer>{body['seed'] % 3}</answer>")
    calls = "".join(f'CALL look {{"what": "w{body["seed"] % (2 + more)}"}}\n' for more in range(1 + len(told)))
    return says(f"so\n{calls}")


case("dialect of a user's own")(
    partial(scripted, strategy=tl.Chain(2), handler=spoken, agent=scripted_agent(dialect=Lines(), sampling=PLAIN))
)


def broken(body: Body, nth: int) -> Body:
    """A model whose calls are no JSON, lead to no tool, lack arguments, are many, or are nothing at all."""
    reply = lost_in()(body, nth)
    for one in reply["choices"]:
        kind = (body["seed"] + one["index"]) % 6
        for call in one["message"].get("tool_calls", []):
            function = call["function"]
            if kind == 0:
                function["arguments"] = function["arguments"][:-1]
            elif kind == 1:
                function["name"] = "lo ok"
            elif kind == 2:
                function["arguments"] = '{"where": "\\u0007here"}'
            elif kind == 3:
                function["arguments"] = "[]"
            elif kind == 4:
                call["id"] = ""
    return reply


for malformed in ("return", "repair"):
    case(f"broken tool calls, {malformed}")(
        partial(scripted, strategy=tl.Chain(6), handler=broken, agent=scripted_agent(malformed=malformed))
    )


def silent(body: Body, nth: int) -> Body:
    """A model that says nothing at first: null, white space, an empty list of calls."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    if turn < 2:
        return completion(
            [choice((None, "", " \n", "<think>well</think>")[(body["seed"] + turn) % 4], message={"tool_calls": []})],
            {"prompt_tokens": 5, "completion_tokens": 0},
        )
    return says("<answer>1</answer>")


for void in ("tell", "stop"):
    for dialect in ("native", "search-r1"):
        case(f"void turns, {dialect}, {void}")(
            partial(
                scripted,
                strategy=tl.Chain(3),
                handler=silent,
                agent=scripted_agent(
                    on_void_turn=void,
                    dialect=dialect,
                    sampling=PLAIN,
                    tools=[search] if dialect == "search-r1" else scripted_agent().tools,
                ),
            )
        )


def finishing(body: Body, nth: int) -> Body:
    """A model that is cut short, filtered, refuses, or gives a reason that no server has."""
    kind = body["seed"] % 5
    finish = ("length", "content_filter", "stop", "eos_token", None)[kind]
    message = {"refusal": "I cannot."} if kind == 2 else {}
    return completion(
        [choice(None if kind == 2 else "<answer>1</answer>", finish_reason=finish, message=message)],
        {"prompt_tokens": 5, "completion_tokens": 400 if kind == 0 else 3},
    )


case("finish reasons")(partial(scripted, strategy=tl.Chain(6), handler=finishing, agent=scripted_agent(sampling=PLAIN)))

for name, tool in {
    "that fails": failing,
    "in a thread": in_a_thread,
    "with side effects": effective,
    "that is pure": pure,
}.items():
    case(f"tool {name}")(partial(scripted, strategy=tl.TreeGRPO(trees=2, forks=2), agent=scripted_agent(tools=[tool])))

for name, environment in {
    "with snapshots": Notebook,
    "with replay": Paper,
    "without either": Fixed,
    "that is missing for a task": Missing,
}.items():
    agent = scripted_agent(tools=[look], environment=environment)
    case(f"environment {name}")(partial(scripted, strategy=tl.TreeGRPO(trees=2, forks=2, rounds=2), agent=agent))
case("environment with a tool that is not replayed")(
    partial(
        scripted,
        strategy=tl.TreeGRPO(trees=2, forks=2, rounds=2),
        agent=scripted_agent(tools=[look_and_tell], environment=Notebook),
    )
)

case("limit of turns")(partial(scripted, strategy=tl.Chain(3), agent=scripted_agent(max_turns=2)))
case("limit of tool calls")(partial(scripted, strategy=tl.Chain(3), agent=scripted_agent(max_tool_calls=2)))
case("limit of tool calls, none")(partial(scripted, strategy=tl.Chain(3), agent=scripted_agent(max_tool_calls=0)))
case("limit of tokens a turn")(
    partial(simulated, strategy=tl.Chain(3), agent=sim_agent(sampling=tl.Sampling(max_tokens=60)))
)


@case("limit of the context")
def context(stage: Stage) -> None:
    simulated(stage, tl.Chain(3), agent=sim_agent(sampling=PLAIN), llm=stage.sim(max_context=1200))


for name, sampling in {
    "greedy": tl.Sampling(temperature=0, max_tokens=400),
    "of every kind": tl.Sampling(
        temperature=0.7,
        top_p=0.9,
        max_tokens=300,
        stop=("\n\n\n", "é"),
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        extra={"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "é": [1.5, None, "\u2028"]},
    ),
    "without a limit": tl.Sampling(),
}.items():
    case(f"sampling {name}", *(ONCE if name == "greedy" else ()))(
        partial(scripted, strategy=tl.Chain(4), agent=scripted_agent(sampling=sampling))
    )
case("sampling greedy, simulated", *ONCE)(
    partial(
        simulated,
        strategy=tl.TreeGRPO(trees=2, forks=2),
        agent=sim_agent(sampling=tl.Sampling(temperature=0, max_tokens=300)),
    )
)


@case("sampling without seeds")
def unseeded(stage: Stage) -> None:
    scripted(stage, tl.Chain(2), llm=tl.LLM(stage.serve(lost_in()), send_seed=False))


@case("prompt of several messages")
def several(stage: Stage) -> None:
    said = [
        {"role": "system", "content": "You are \u2028 exact."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": ' "word" 1?\u0007'}],
        },
        {"role": "assistant", "content": "w0?"},
        {"role": "user", "content": "No.\ud7ff \U0001f600 </think>"},
    ]
    tasks = [tl.Task(id=f"odd {n} é", messages=[*said, {"role": "user", "content": f"Again {n}."}]) for n in range(2)]
    scripted(stage, tl.Chain(2), agent=scripted_agent(system="Beside it."), tasks=tasks)


@case("no usage")
def uncounted(stage: Stage) -> None:
    scripted(stage, tl.Chain(3), agent=scripted_agent(sampling=PLAIN), handler=lost_in(usage=False))


@case("thinking beside the text")
def beside(stage: Stage) -> None:
    scripted(stage, tl.Chain(3), handler=lost_in(thought=True))


@case("weights")
def weights(stage: Stage) -> None:
    url = stage.serve(lost_in())
    for name, version in (("first", "step-1"), ("later", "step-12"), ("without", None)):
        scripted(stage, tl.Chain(2), llm=url, policy_version=version, name=name)


@case("cache")
def cached(stage: Stage) -> None:
    url = stage.serve(lost_in())
    for name, draws in (("first", 2), ("again", 2), ("more", 4)):
        scripted(stage, tl.Chain(draws), llm=url, cache=stage.folder / "cache", name=name)


@case("cache, greedy", *ONCE)
def cached_greedy(stage: Stage) -> None:
    url, agent = stage.serve(lost_in()), scripted_agent(sampling=tl.Sampling(temperature=0))
    for name in ("first", "again"):
        scripted(stage, tl.Chain(3), agent=agent, llm=url, cache=stage.folder / "cache", name=name)


@case("cache, simulated")
def cached_sim(stage: Stage) -> None:
    url = stage.sim()
    for name in ("first", "again"):
        simulated(stage, tl.TreeGRPO(trees=2, forks=2), llm=url, cache=stage.folder / "cache", name=name)


@case("price")
def priced(stage: Stage) -> None:
    url = stage.serve(lost_in())
    llm = tl.LLM(url, price=tl.llms.Price(prompt=1, generated=2, cached=0.5), api_key="key", headers={"X-Team": "red"})
    scripted(stage, tl.Chain(2), llm=llm)


@case("two endpoints", "digests", "trees")
def two(stage: Stage) -> None:
    llm = tl.LLM(stage.serve(lost_in(), "first"), stage.serve(lost_in(), "second"))
    scripted(stage, tl.TreeGRPO(trees=2, forks=2), llm=llm)


@case("limits that are never reached")
def limited(stage: Stage) -> None:
    limits = tl.llms.Limits(requests_per_minute=1e9, tokens_per_minute=1e12, endpoint_concurrency=3)
    scripted(stage, tl.TreeGRPO(trees=2, forks=2), llm=tl.LLM(stage.serve(lost_in()), limits=limits))


@case("one at a time")
def slowly(stage: Stage) -> None:
    scripted(stage, tl.TreeGRPO(trees=2, forks=2), llm=tl.LLM(stage.serve(lost_in()), max_concurrency=1))


REWARDS: dict[str, Any] = {
    "that batches": lengths,
    "in a batch, a struct": Counting(letter="1", batch=3),
    "of several": tl.rewards.weighted(
        {"exact": tl.exact_match, "f1": (tl.rewards.F1(), 2), "in": (tl.rewards.contains, -0.5)}
    ),
    "of parts": in_parts,
    "by choice or number": tl.rewards.weighted(
        {"choice": tl.rewards.Choice(), "number": tl.rewards.Numeric(relative=0.01)}
    ),
    "by mathematics": tl.rewards.Math(timeout=60),
    "that breaks": breaks,
    "none": None,
}
for name, reward in REWARDS.items():
    case(f"reward {name}")(partial(scripted, strategy=tl.Chain(3), reward=reward))


@case("reward by a judge")
def judged(stage: Stage) -> None:
    judge = tl.rewards.Judge(
        "judge", llm=stage.serve(lambda body, nth: says("So <grade>correct</grade>"), "judge"), scale=None
    )
    scripted(stage, tl.Chain(3), reward=tl.rewards.weighted({"judge": judge, "exact": tl.exact_match}))


@case("reward by a simulated judge")
def judged_sim(stage: Stage) -> None:
    simulated(stage, tl.Chain(2), reward=tl.rewards.Judge("sim-judge", llm=stage.sim("judge")))


FILTERS: dict[str, tuple[list[Any], Any]] = {
    "of void turns": ([tl.filters.VoidTurns()], silent),
    "of length": ([tl.filters.OverlongPenalty(length=6, buffer=4), tl.filters.OverlongMask()], lost_in()),
    "of repetition": ([tl.filters.Repetition(), tl.filters.TreeRLRepetition()], chatty),
    "of groups": ([tl.filters.ZeroVariance()], lost_in(words=1)),
    "of prefixes": ([tl.filters.ExactPrefix()], chatty),
    **{
        f"as {kind.__name__}": ([kind()], lost_in(words=1))
        for kind in (tl.filters.SimpleTIR, tl.filters.Slime, tl.filters.SkyRL)
    },
    "of a user's own": ([Rewarded(), Unlucky(("q1",)), Breaking()], lost_in()),
}
for name, (filters, handler) in FILTERS.items():
    llm = partial(lambda stage, handler: tl.LLM(stage.serve(handler), siblings=False), handler=handler)
    case(f"filters {name}")(
        lambda stage, filters=filters, llm=llm: scripted(stage, tl.Chain(4), llm=llm(stage), filters=filters)
    )


@case("groups until enough were kept")
def groups(stage: Stage) -> None:
    tasks = [tl.Task.ask(f"what is word {n}?", str(n), id=f"q{n}") for n in range(5)]
    llm = tl.LLM(stage.serve(lost_in()), max_concurrency=1)
    scripted(stage, tl.Chain(3), llm=llm, tasks=tasks, filters=[Unlucky(("q0", "q2"))], groups=2)


for size, supports in ((1, False), (7, False), (64, True)):
    case(f"batch engine of {size}{', siblings together' if supports else ''}")(
        lambda stage, size=size, supports=supports: simulated(
            stage,
            tl.TreeGRPO(trees=2, forks=2),
            agent=sim_agent(sampling=PLAIN),
            llm=stage.batches(SimEngine().generate, max_batch=size, supports_n=supports),
        )
    )
case("batch engine, async")(
    lambda stage: simulated(
        stage,
        tl.Chain(3),
        agent=sim_agent(sampling=PLAIN),
        llm=stage.batches(AsyncSimEngine().generate, max_batch=5),
    )
)


@case("live client")
def live(stage: Stage) -> None:
    url, out = stage.serve(lost_in()), stage.folder / "r.run"

    async def play() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="k", default_headers={"X-Team": "blue"}) as client:
            llm, strategy = tl.llms.ClientLLM(client, max_concurrency=3), tl.TreeGRPO(trees=2, forks=2)
            await tl.arun(scripted_agent(), WORDS, llm=llm, strategy=strategy, reward=worth, seed=5, workers=0, out=out)

    asyncio.run(play())
    stage.record(out, "run")


class Own:
    """An LLM of a user's own, which knows nothing of bytes."""

    siblings = False

    async def complete(self, request: Any) -> Any:
        body = json.loads(request.body)
        reply = lost_in(honours_n=False)(body, 0)
        from trunkline.llm.response import read

        return (request.take or read)(json.dumps(reply).encode(), 0, 1, 5)

    async def close(self) -> None: ...


case("LLM of a user's own")(lambda stage: scripted(stage, tl.Chain(3), llm=Own()))
