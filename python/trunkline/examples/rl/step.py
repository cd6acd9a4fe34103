# trunkline sim exec python step.py
"""One step of training on trees: rollouts that share their beginnings, and the arrays that a trainer takes."""

import trunkline as tl
from trunkline.sim.tools import search, visit  # yours: functions with @tl.tool

AGENT = tl.Agent(
    model="sim-agent",
    tools=[search, visit],
    system="Answer the question with the tools you have. Put the final answer between <answer> and </answer>.",
    max_turns=20,
)


def main() -> None:
    llm = tl.LLM(tokens="chat")  # the server is $OPENAI_BASE_URL; token ids and log-probs are kept
    strategy = tl.TreeGRPO(trees=2, forks=2, rounds=1)
    run = tl.run(AGENT, "questions.jsonl", llm=llm, strategy=strategy, reward=tl.exact_match, seed=1)

    batch = tl.train.batch(run, estimator="tree_grpo", shared="once")
    print(batch.report)
    columns = batch.tree(dtype="i64")  # a buffer for each; what rollouts share stands once
    print({name: memoryview(column).shape for name, column in columns.items()})
    try:
        from trunkline.train.torch import tensors

        print("trained tokens:", int(tensors(columns)["loss_mask"].sum()))
    except tl.errors.ConfigError as problem:  # no torch here
        print(problem)


if __name__ == "__main__":
    main()
