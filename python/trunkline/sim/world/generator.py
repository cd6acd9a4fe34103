"""Makes a world: entities, facts that join them, one document for each entity, and questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.errors import ConfigError
from trunkline.sim.world import arithmetic
from trunkline.sim.world import names as prose
from trunkline.sim.world.language import ANSWER_KIND, Chain, Fact, alias_sentence, ask, ask_variants, sentence
from trunkline.sim.world.names import Draws, Namer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FEWEST_DOCUMENTS", "Document", "Question", "World", "make_world"]

FEWEST_DOCUMENTS: Final = 60
"""The smallest world in which chains of four hops exist."""

HOPS: Final = (1, 1, 2, 2, 2, 3, 3, 3, 4, 4)
"""Numbers of hops of a question, each as likely as another."""

MOST_HOPS: Final = 12
"""Most phrases that the language reads in one question."""

_SHARES: Final = (("place", 0.16), ("organisation", 0.16), ("work", 0.22), ("event", 0.12), ("person", 0.34))
_REGION_SHARE: Final = 0.15
_TWIN_SHARE: Final = 0.14
_ALIAS_SHARE: Final = 0.15
_ARITHMETIC_SHARE: Final = 0.15
_TRIES_PER_QUESTION: Final = 5000


class Document(msgspec.Struct, frozen=True):
    """One page of the corpus, about one entity.

    Attributes:
        id: Independent of the kind of the entity.
        title: The entity's own name.
        kind: ``person``, ``place``, ``organisation``, ``work`` or ``event``; not written to the corpus.
        text: Sentences, separated by spaces.
    """

    id: str
    title: str
    kind: str
    text: str


class Question(msgspec.Struct, frozen=True):
    """One question with its answer.

    Attributes:
        id: Unique in its world.
        question: What a model is shown.
        answer: The answer in its first form.
        aliases: Other names of the answer, which are as right.
        hops: Relations to follow, or for arithmetic the operations to carry out.
        kind: ``lookup`` or ``arithmetic``.
        support: Ids of the documents that prove the answer, in order; empty for arithmetic.
    """

    id: str
    question: str
    answer: str
    aliases: tuple[str, ...]
    hops: int
    kind: str
    support: tuple[str, ...]


class World(msgspec.Struct, frozen=True):
    """A closed corpus and questions about it, both in order of id; kinds and hops of questions are mixed."""

    seed: int
    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


class _Entity(msgspec.Struct, eq=False):
    name: str
    kind: str
    alias: str = ""
    lookalike: str = ""
    facts: dict[str, str] = {}
    about: list[Fact] = []


def make_world(seed: int, documents: int = 2000, questions: int = 500, hops: Sequence[int] = HOPS) -> World:
    """Make a world; the same arguments give the same world on every machine.

    Args:
        seed: Any integer. Worlds of different seeds have different names, facts and questions.
        documents: How many documents, one for each entity.
        questions: How many questions: about 85 % need one to four hops, the others are arithmetic.
        hops: Numbers that the hops of a question are drawn from, each at most 12.

    Raises:
        ConfigError: Too few documents, a negative number of questions, impossible numbers of hops, or more questions
            than this many documents can give.
    """
    if documents < FEWEST_DOCUMENTS:
        raise ConfigError(f"a world needs at least {FEWEST_DOCUMENTS} documents, not {documents}")
    if questions < 0:
        raise ConfigError(f"a world cannot have {questions} questions")
    if not hops or not all(1 <= count <= MOST_HOPS for count in hops):
        raise ConfigError(f"hops: questions have 1 to {MOST_HOPS} of them, not {list(hops)}")
    entities = _entities(seed, documents)
    _relate(entities, Draws(seed, "facts"))
    by_name = {entity.name: entity for entity in entities}
    order = Draws(seed, "ids").shuffled(entities)
    width = max(4, len(str(documents)))
    ids = {entity.name: f"d{i:0{width}}" for i, entity in enumerate(order, 1)}
    pages = tuple(
        Document(ids[entity.name], entity.name, entity.kind, _page(entity, by_name, Draws(seed, "page", entity.name)))
        for entity in order
    )
    return World(seed, pages, _questions(seed, questions, hops, by_name, ids))


def _entities(seed: int, documents: int) -> list[_Entity]:
    """Every entity with its names; a share of them resembles another one of the same kind."""
    draws = Draws(seed, "names")
    namer = Namer(draws)
    entities: list[_Entity] = []
    for kind, share in _SHARES:
        count = documents - len(entities) if kind == _SHARES[-1][0] else round(documents * share)
        regions = max(2, round(count * _REGION_SHARE)) if kind == "place" else 0
        same: list[_Entity] = []
        for i in range(count):
            form = "region" if i < regions else kind
            if i > regions and draws.chance(_TWIN_SHARE):
                other = draws.pick(same[regions:] or same)
                entity = _Entity(namer.twin(other.name, form), kind, lookalike=other.name, facts={}, about=[])
                other.lookalike = other.lookalike or entity.name
            else:
                entity = _Entity(namer.fresh(form), kind, facts={}, about=[])
            if draws.chance(_ALIAS_SHARE):
                entity.alias = namer.alias(form)
            same.append(entity)
        entities += same
    return entities


def _relate(entities: list[_Entity], draws: Draws) -> None:
    of = {kind: [entity for entity in entities if entity.kind == kind] for kind, _ in _SHARES}
    regions = of["place"][: max(2, round(len(of["place"]) * _REGION_SHARE))]
    towns = of["place"][len(regions) :]
    people, firms, events = of["person"], of["organisation"], of["event"]

    def give(kind: list[_Entity], *facts: tuple[str, list[_Entity] | range, float]) -> None:
        for subject in kind:
            for relation, choices, p in facts:
                if isinstance(choices, range):
                    if draws.chance(p):
                        subject.facts[relation] = str(choices[draws.below(len(choices))])
                    continue
                other = draws.pick(choices)
                if other is not subject and draws.chance(p):
                    _state(subject, relation, other)

    born = ("birth_year", range(1700, 2000), 0.9)
    give(people, ("born_in", towns, 1.0), born, ("works_for", firms, 0.9), ("mentor", people, 0.8))
    _pair(draws.shuffled(people), "spouse", 0.6)
    give(of["place"], ("mayor", people, 0.9))
    give(towns, ("located_in", regions, 1.0))
    _pair(draws.shuffled(towns), "twin", 0.7)
    led = (("founder", people, 1.0), ("director", people, 0.9), ("based_in", towns, 1.0))
    give(firms, *led, ("established", range(1750, 2016), 0.9))
    released = ("released", range(1760, 2021), 0.9)
    give(of["work"], ("author", people, 1.0), released, ("subject_event", events, 0.7))
    give(events, ("held_in", towns, 1.0), ("organiser", firms, 1.0), ("year", range(1720, 2021), 0.9))


def _state(subject: _Entity, relation: str, other: _Entity) -> None:
    subject.facts[relation] = other.name
    other.about.append(Fact(subject.name, relation, other.name))


def _pair(entities: list[_Entity], relation: str, share: float) -> None:
    """Join this share of the entities two by two with a relation that holds both ways."""
    last = int(len(entities) * share) // 2 * 2
    for one, other in zip(entities[0:last:2], entities[1:last:2], strict=True):
        _state(one, relation, other)
        _state(other, relation, one)


def _page(entity: _Entity, by_name: dict[str, _Entity], draws: Draws) -> str:
    """A document: all facts of its entity, some facts that lead to the entity, and sentences without any."""

    def called(name: str, p: float) -> str:
        alias = by_name[name].alias if name in by_name else ""
        return alias if alias and draws.chance(p) else name

    def say(fact: Fact) -> str:
        stated = Fact(called(fact.subject, 0.2), fact.relation, called(fact.object, 0.25))
        return sentence(stated, draws.below(12))

    body = [say(Fact(entity.name, relation, value)) for relation, value in entity.facts.items()]
    about = [fact for fact in entity.about if by_name[fact.subject].facts.get(fact.relation) == entity.name]
    body += [say(fact) for fact in draws.shuffled(about)[: 1 + draws.below(4)]]
    body += prose.filler(entity.kind, 2 + draws.below(3), draws)
    others = list(by_name)
    body += [prose.mention(draws.pick(others), draws) for _ in range(draws.below(3))]
    if entity.lookalike:
        body.append(prose.mistaken(entity.lookalike, draws))
    head = [prose.opening(entity.name, entity.kind, draws)]
    if entity.alias:
        head.append(alias_sentence(entity.name, entity.alias))
    return " ".join(head + draws.shuffled(body))


def _questions(
    seed: int, count: int, hops: Sequence[int], by_name: dict[str, _Entity], ids: dict[str, str]
) -> tuple[Question, ...]:
    sums = round(count * _ARITHMETIC_SHARE)
    drafts = _sums(Draws(seed, "arithmetic"), sums)
    drafts += _lookups(Draws(seed, "questions"), count - sums, hops, by_name, ids)
    width = max(4, len(str(count)))
    order = Draws(seed, "question order").shuffled(drafts)
    return tuple(msgspec.structs.replace(draft, id=f"q{i:0{width}}") for i, draft in enumerate(order, 1))


def _sums(draws: Draws, count: int) -> list[Question]:
    drafts: dict[str, Question] = {}
    while len(drafts) < count:
        problem = arithmetic.make(draws)
        operations = len(problem.steps) - 1
        drafts[problem.text] = Question("", problem.text, str(problem.answer), (), operations, "arithmetic", ())
    return list(drafts.values())


def _lookups(
    draws: Draws, count: int, hops: Sequence[int], by_name: dict[str, _Entity], ids: dict[str, str]
) -> list[Question]:
    """Questions along random walks over the facts, each asked once; no walk returns to an entity."""
    drafts: dict[tuple[str, tuple[str, ...]], Question] = {}
    entities = list(by_name.values())
    tries = 0
    while len(drafts) < count and tries < _TRIES_PER_QUESTION:
        tries += 1
        start = draws.pick(entities)
        path, relations = _walk(start, draws.pick(hops), by_name, draws)
        if not relations or (start.name, tuple(relations)) in drafts:
            continue
        answer = path[-1]
        aliases = (by_name[answer].alias,) if answer in by_name and by_name[answer].alias else ()
        anchor = start.alias if start.alias and draws.chance(0.3) else start.name
        question = ask(Chain(anchor, tuple(relations)), draws.below(ask_variants(len(relations))))
        if any(name.casefold() in question.casefold() for name in (answer, *aliases)):
            continue
        support = tuple(ids[name] for name in path[:-1])
        drafts[start.name, tuple(relations)] = Question(
            "", question, answer, aliases, len(relations), "lookup", support
        )
        tries = 0
    if len(drafts) < count:
        raise ConfigError(
            f"{len(entities)} documents give only {len(drafts)} different questions of the {count} wanted; "
            "ask for more documents or fewer questions"
        )
    return list(drafts.values())


def _walk(start: _Entity, hops: int, by_name: dict[str, _Entity], draws: Draws) -> tuple[list[str], list[str]]:
    """The entities and relations of a random walk; no relations where it ends too early."""
    path, relations = [start.name], []
    for hop in range(hops):
        entity = by_name[path[-1]]
        options = [
            relation
            for relation, value in entity.facts.items()
            if value not in path and (hop == hops - 1 or ANSWER_KIND[relation] != "date")
        ]
        if not options:
            return path, []
        relation = draws.pick(options)
        path.append(entity.facts[relation])
        relations.append(relation)
    return path, relations
