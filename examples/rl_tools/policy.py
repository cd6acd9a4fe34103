"""The policy: a transformer of half a million parameters, its imitation of the teacher, and an engine over it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

import trunkline as tl
from rl_tools.task import END, ID, WORDS, Question, Teacher, avoided, questions, transcript

HEADS = 4


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm. It computes in the type of its weights, whatever that is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        cache: torch.Tensor | None,
        at: int,
    ) -> torch.Tensor:
        rows, size, width = x.shape
        query, key, value = self.qkv(self.norms[0](x)).view(rows, size, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key = rotated(query, *turn), rotated(key, *turn)
        if cache is not None:
            cache[0, :, :, at : at + size], cache[1, :, :, at : at + size] = key, value
            key, value = cache[:, :, :, : at + size]
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, size, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Policy(nn.Module):
    """A causal language model over the words of the task; with 4 layers of width 96 it has 0.47 M parameters."""

    def __init__(self, layers: int = 4, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, len(WORDS), bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02 if name.endswith(("out.weight", "down.weight")) else 0.05)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: torch.Tensor | None = None,
        at: int = 0,
    ) -> torch.Tensor:
        """Return logits [rows, tokens, words].

        Args:
            ids: [rows, tokens].
            positions: Of the tokens in their sequences, likewise.
            mask: Which places a token sees: bool [rows or 1, 1, tokens, places].
            cache: Where keys and values of these tokens are written, behind those before ``at``: [layers, 2, rows,
                heads, places, width of a head].
            at: How many places of the cache are filled.
        """
        x = self.embed(ids)
        half = x.shape[-1] // HEADS // 2
        rates = 1000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
        angles = positions[:, None, :, None].to(x.dtype) * rates
        turn = angles.cos(), angles.sin()
        for layer, block in enumerate(self.blocks):
            x = block(x, turn, mask, None if cache is None else cache[layer], at)
        return self.head(self.norm(x))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn halves of vectors by their positions' angles (Su et al. 2021, arXiv 2104.09864)."""
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


def causal(size: int) -> torch.Tensor:
    return torch.ones(1, 1, size, size, dtype=torch.bool).tril()


def imitate(
    seed: int, folder: Path, *, batches: int = 1000, size: int = 48, steps: Sequence[int] = (3, 4, 5, 6)
) -> dict[str, Any]:
    """Train a policy on the traces of a teacher of its own, and save it in the folder; return how long it took.

    In every eighth batch the traces stand behind a message that lists how up to 7 others began, and begin differently.
    """
    start, cpu = time.perf_counter(), time.process_time()
    torch.manual_seed(seed)
    model, teacher, dice = Policy(), Teacher(seed), random.Random(f"imitation {seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, done / 30) * (1 - done / batches))
    asked = questions(f"imitation {seed}", batches * size, steps=steps)
    losses = []
    for batch in range(batches):
        shown = asked[batch * size : (batch + 1) * size]
        written = [list(shown_trace(one, teacher, dice, avoid=batch % 8 == 7)) for one in shown]
        columns = [torch.tensor(column) for trace in written for column in zip(*trace, strict=True)]
        ids, own = (nn.utils.rnn.pad_sequence(columns[kind::2], batch_first=True) for kind in (0, 1))
        length = ids.shape[1] - 1
        logits = model(ids[:, :-1], torch.arange(length)[None], causal(length))
        loss = functional.cross_entropy(logits[own[:, 1:]], ids[:, 1:][own[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"imitation-{seed}.pt"
    torch.save(model.state_dict(), path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)
    took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    return {"seed": seed, "batches": batches, "first_loss": losses[0], "loss": sum(losses[-50:]) / 50, **took}


def shown_trace(asked: Question, teacher: Teacher, dice: random.Random, *, avoid: bool) -> Iterator[tuple[int, bool]]:
    if not avoid:
        return transcript(asked, teacher.trace(asked, dice))
    begun = list(dict.fromkeys(teacher.trace(asked, dice)[0] for _ in range(dice.randint(1, 7))))
    return transcript(asked, teacher.different(asked, begun, dice), avoided(begun))


def load(seed: int, folder: Path) -> Policy:
    """Load the policy that imitated a teacher."""
    model = Policy()
    model.load_state_dict(torch.load(folder / f"imitation-{seed}.pt", weights_only=True))
    return model


class Counts(NamedTuple):
    """What an engine has done.

    Attributes:
        generated: Tokens that were sampled, those of draws that merged or failed included.
        prompt: Tokens of the prompts of all requests; draws of one request count it once.
        computed: Of these, tokens that were forwarded: equal prompts of a batch once.
        draws: Completions.
        batches: Calls of the engine.
    """

    generated: int = 0
    prompt: int = 0
    computed: int = 0
    draws: int = 0
    batches: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(self, other, strict=True)))


class Engine:
    """Decodes with a policy of this process, as it is at the time. A draw's seed alone decides what is drawn."""

    def __init__(self, model: Policy) -> None:
        self.model = model
        self.counts = Counts()

    @torch.no_grad()
    def generate(self, prompts: list[tl.llms.Prompt]) -> list[tl.llms.Completion | list[tl.llms.Completion]]:
        """Complete prompts of token ids, each of them ``n`` times."""
        given = [tuple(prompt.token_ids or ()) for prompt in prompts]
        asked = [prompt.sampling for prompt in prompts]
        rows = [place for place, prompt in enumerate(prompts) for _ in range(prompt.n)]
        seeds = [None if one.seed is None else one.seed + draw for one in prompts for draw in range(one.n)]
        most = max(int(str(one["max_tokens"])) for one in asked)
        temperatures = torch.tensor([float(str(asked[row].get("temperature", 1.0))) for row in rows])
        distinct = list(dict.fromkeys(given))
        place = {prompt: number for number, prompt in enumerate(distinct)}
        drawn = self._decode(distinct, [place[given[row]] for row in rows], most, temperatures, seeds)
        done = iter(drawn)
        made = [[next(done) for _ in range(prompt.n)] for prompt in prompts]
        generated = sum(len(one.token_ids or ()) for one in drawn)
        prompt_tokens, computed = (sum(map(len, some)) for some in (given, distinct))
        self.counts = self.counts.plus(Counts(generated, prompt_tokens, computed, len(rows), 1))
        return [many if prompt.n > 1 else many[0] for prompt, many in zip(prompts, made, strict=True)]

    def _decode(
        self,
        prompts: Sequence[Sequence[int]],
        rows: list[int],
        most: int,
        temperatures: torch.Tensor,
        seeds: list[int | None],
    ) -> list[tl.llms.Completion]:
        """Decode rows of distinct prompts, which are padded on the left, all rows one token at a time."""
        longest = max(map(len, prompts))
        pads = torch.tensor([longest - len(prompt) for prompt in prompts])
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        place = torch.arange(longest + most)
        seen = place[None] >= pads[:, None]
        # A padding token sees itself: a row of attention that sees nothing is NaN.
        mask = causal(longest) & (seen[:, None, None, :longest] | torch.eye(longest, dtype=torch.bool))
        width = self.model.embed.embedding_dim // HEADS
        cache = torch.zeros(len(self.model.blocks), 2, len(prompts), HEADS, longest + most, width)
        positions = (place[None, :longest] - pads[:, None]).clamp(min=0)
        logits = self.model(ids, positions, mask, cache)[:, -1]
        if rows != list(range(len(prompts))):
            chosen = torch.tensor(rows)
            logits, cache, pads, seen = logits[chosen], cache[:, :, chosen], pads[chosen], seen[chosen]
        dice = [random.Random(seed) for seed in seeds]
        chances = torch.tensor([[one.random() for _ in range(most)] for one in dice], dtype=torch.float64)
        steps: list[tuple[torch.Tensor, torch.Tensor]] = []
        ended = torch.zeros(len(rows), dtype=torch.bool)
        for step in range(most):
            token, logprob = sample(logits, temperatures, chances[:, step])
            steps.append((token, logprob))
            ended |= token == ID[END]
            if step + 1 == most or bool(ended.all()):
                break
            at = longest + step
            logits = self.model(token[:, None], (at - pads)[:, None], seen[:, None, None, : at + 1], cache, at)[:, -1]
        tokens, logprobs = (torch.stack(column, 1).tolist() for column in zip(*steps, strict=True))
        return [completion(*row) for row in zip(tokens, logprobs, strict=True)]


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, chances: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token of each row by its chance, the likeliest at temperature 0, with its log-probability in nats."""
    greedy = temperatures == 0
    logprobs = (logits / torch.where(greedy, 1.0, temperatures)[:, None]).log_softmax(-1)
    sums = logprobs.double().exp().cumsum(-1)
    drawn = torch.searchsorted(sums, chances[:, None] * sums[:, -1:])[:, 0].clamp(max=logits.shape[-1] - 1)
    token = torch.where(greedy, logits.argmax(-1), drawn)
    return token, logprobs.gather(1, token[:, None])[:, 0]


def completion(ids: list[int], logprobs: list[float]) -> tl.llms.Completion:
    """Cut a row behind the token that ends it."""
    size = ids.index(ID[END]) + 1 if ID[END] in ids else len(ids)
    ended = ids[size - 1] == ID[END]
    text = " ".join(WORDS[one] for one in ids[: size - ended])
    return tl.llms.Completion(
        text=text, finish="stop" if ended else "length", token_ids=ids[:size], logprobs=[*logprobs[:size]]
    )
