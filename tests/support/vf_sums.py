"""A taskset of verifiers with a harness of its own: the model looks numbers up, and answers with their sum."""

from __future__ import annotations

import json
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI, OpenAIError
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["SumsHarness", "SumsTaskset"]

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "integer"}}},
    },
}


class SumsData(vf.TaskData):
    answer: str
    numbers: list[int]


class SumsTask(vf.Task[SumsData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.endswith("1"))

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        return 0.5

    @vf.metric
    async def looks(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class SumsConfig(vf.TasksetConfig):
    size: int = 3
    image: str | None = None
    rules: bool = False
    endless: bool = False
    parts: bool = False


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    @property
    def bounded(self) -> bool:
        return not self.config.endless or self._bounded is True

    def load(self):
        for number in range(self.config.size):
            data = SumsData(
                prompt=f"Sum {number}.",
                system_prompt="Look, then answer.",
                answer=str(number),
                numbers=[number, number + 1],
                image=self.config.image,
                network_allow=[] if self.config.rules else ["*"],
            )
            if self.config.parts:
                shown = vf.UserMessage(content=[vf.TextContentPart(text="Add"), vf.TextContentPart(text="up.")])
                called = vf.ToolCall(id="c", name="look", arguments="{}")
                earlier = [vf.AssistantMessage(tool_calls=[called]), vf.ToolMessage(tool_call_id="c", content="9")]
                data = data.model_copy(update={"prompt": [shown, *earlier, vf.UserMessage(content="\x1b[31m<b>")]})
            yield SumsTask(data, self.config.task)


class SumsHarnessConfig(vf.HarnessConfig):
    pass


class SumsHarness(vf.Harness[SumsHarnessConfig]):
    """A chat loop in this process, which asks by the endpoint as a program would."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: vf.Trace, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(one) for one in prompt or ()]
        try:
            async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
                while True:
                    reply = await client.chat.completions.create(model=ctx.model, messages=messages, tools=[LOOK])
                    said = reply.choices[0].message
                    messages.append(said.model_dump(exclude_none=True))
                    if not said.tool_calls:
                        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                    for call in said.tool_calls:
                        place = json.loads(call.function.arguments)["place"]
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"There is {place**2}"})
        except OpenAIError as error:
            return vf.ProgramResult(exit_code=1, stdout="", stderr=repr(error))
