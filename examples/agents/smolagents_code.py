"""A code agent of smolagents: the model writes Python, which the agent runs."""

import sys

from corpus import look
from smolagents import CodeAgent, OpenAIServerModel, tool


@tool
def search(query: list) -> str:
    """Search the corpus.

    Args:
        query: Search queries.
    """
    return look(query)


agent = CodeAgent(tools=[search], model=OpenAIServerModel("any"), max_steps=6, verbosity_level=0)
print(agent.run(sys.stdin.read()))
