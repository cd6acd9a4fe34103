"""A tool-calling agent of smolagents, which asks chat completions and writes its own turns anew."""

import sys

from corpus import look
from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def search(query: list) -> str:
    """Search the corpus.

    Args:
        query: Search queries.
    """
    return look(query)


agent = ToolCallingAgent(tools=[search], model=OpenAIServerModel("any"), max_steps=6, verbosity_level=0)
print(agent.run(sys.stdin.read()))
