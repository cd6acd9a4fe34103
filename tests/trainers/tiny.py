"""A Qwen2 of about 95 thousand parameters, and random trees of token ids for it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from chat_templates import write
from frameworks import load

from trunkline.train import PackedColumns, pack

torch, transformers = load("torch", "transformers")


def tiny_model(vocabulary: int, attention: str = "sdpa", seed: int = 0) -> Any:
    """Make an untrained model whose logits differ enough to tell tokens apart."""
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        tie_word_embeddings=True,
        attn_implementation=attention,
    )
    return transformers.Qwen2ForCausalLM(config)


def policy(folder: Path, seed: int = 0) -> tuple[Any, Any]:
    """Make a tokenizer and a tiny model of its vocabulary, both saved in the folder."""
    write("chatml", folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        eos_token="<|im_end|>",
        pad_token="<|im_start|>",
        chat_template=json.loads((folder / "tokenizer_config.json").read_text())["chat_template"],
    )
    model = tiny_model(len(tokenizer), seed=seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def ends(tokenizer: Any) -> set[int]:
    """Ids that end a completion, many of them, so that a random model ends its turns."""
    return {tokenizer.eos_token_id, *range(0, len(tokenizer), 9)}


class Forest(NamedTuple):
    """Trees of tokens side by side: of each node its parent and its tokens, of each rollout its leaf."""

    parents: list[int]
    runs: list[list[tuple[int, float, int]]]
    leaves: list[int]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to this one."""
        found = [node]
        while self.parents[found[-1]] != found[-1]:
            found.append(self.parents[found[-1]])
        return found[::-1]

    def tokens(self, rollout: int) -> list[tuple[int, float, int]]:
        """The tokens of a rollout: id, log-probability, and whether it was sampled."""
        return [token for node in self.path(self.leaves[rollout]) for token in self.runs[node]]

    def pack(self, **options: Any) -> PackedColumns:
        """A tree layout; versions are the places of tokens in the forest."""
        flat = [token for run in self.runs for token in run]
        return pack(
            "tree",
            parents=self.parents,
            leaves=self.leaves,
            offsets=[sum(map(len, self.runs[:node])) for node in range(len(self.runs) + 1)],
            ids=[token for token, _, _ in flat],
            logprobs=[logprob for _, logprob, _ in flat],
            versions=range(len(flat)),
            mask=bytes(sampled for _, _, sampled in flat),
            **options,
        )


def random_forest(seed: int, trees: int, rollouts: int, vocabulary: int, turns: int = 3) -> Forest:
    """Grow trees at random: prompts, then turns and observations in turn, with forks anywhere."""
    dice = random.Random(seed)

    def run(sampled: int, most: int) -> list[tuple[int, float, int]]:
        return [
            (dice.randrange(vocabulary), dice.uniform(-4, -0.1) if sampled else 0.0, sampled)
            for _ in range(dice.randint(1, most))
        ]

    parents, runs, leaves = [], [], []
    for _ in range(trees):
        root = len(parents)
        parents.append(root)
        runs.append(run(0, 9))
        turn_ends = [(root, 0)]
        for _ in range(rollouts):
            node, depth = dice.choice(turn_ends)
            for _ in range(dice.randint(1, max(1, turns - depth))):
                depth += 1
                for sampled in (1, 0):
                    parents.append(node)
                    runs.append(run(sampled, 6))
                    node = len(parents) - 1
                turn_ends.append((node, depth))
            leaves.append(node)
    return Forest(parents, runs, leaves)
