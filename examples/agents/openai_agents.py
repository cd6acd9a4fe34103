"""An agent of the OpenAI Agents SDK, which asks the responses interface."""

import sys

from corpus import look

from agents import Agent, Runner, function_tool


@function_tool
def search(query: list[str]) -> str:
    """Search the corpus."""
    return look(query)


agent = Agent(name="searcher", model="any", instructions="Answer with the tools you have.", tools=[search])
print(Runner.run_sync(agent, sys.stdin.read(), max_turns=12).final_output)
