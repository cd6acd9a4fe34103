"""An agent of LangChain and LangGraph, which asks chat completions."""

import sys

from corpus import look
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def search(query: list[str]) -> str:
    """Search the corpus."""
    return look(query)


agent = create_agent(ChatOpenAI(model="any"), tools=[search], system_prompt="Answer with the tools you have.")
state = agent.invoke({"messages": [{"role": "user", "content": sys.stdin.read()}]})
print(state["messages"][-1].text)
