"""An agent of mini-swe-agent, which runs shell commands in its folder."""

import os
import sys

os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

system = "You solve tasks in a shell."
agent = DefaultAgent(
    LitellmModel(model_name="openai/any"), LocalEnvironment(), system_template=system, instance_template="{{task}}"
)
print(agent.run(sys.stdin.read())["submission"])
