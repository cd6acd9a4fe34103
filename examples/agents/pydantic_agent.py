"""An agent of pydantic-ai, which asks the responses interface."""

import sys

from corpus import look
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel

agent = Agent(OpenAIResponsesModel("any"), instructions="Answer with the tools you have.")


@agent.tool_plain
def search(query: list[str]) -> str:
    """Search the corpus."""
    return look(query)


print(agent.run_sync(sys.stdin.read()).output)
