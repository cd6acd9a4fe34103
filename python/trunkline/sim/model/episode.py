"""Reads the state of a question off its conversation.

Nothing is kept between requests: queries and visits name the beliefs they were written with, also where thinking is
dropped from history.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline.sim.model.chat_template import Call, parts, response
from trunkline.sim.world import arithmetic, language
from trunkline.sim.world.language import Chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trunkline.sim.model.chat_template import Conversation
    from trunkline.sim.world.arithmetic import Step


__all__ = [
    "NO",
    "OFFER",
    "SEARCH_KEYS",
    "VISIT_KEYS",
    "YES",
    "Episode",
    "Names",
    "again_text",
    "chain_key",
    "events",
    "facts_in",
    "find_subject",
    "forms_in",
    "is_form",
    "query_text",
]


YES: Final = ("yes", "true", "correct", "accept", "accepted", "approve", "approved", "sufficient", "pass")
NO: Final = ("no", "false", "incorrect", "reject", "rejected", "insufficient", "fail")
_WORDS: Final = "|".join((*YES, *NO))
OFFER: Final = re.compile(rf"<([A-Za-z_]{{1,24}})>\s*({_WORDS})\s*(?:(?:/|\||or)\s*({_WORDS})\s*)?</\1>", re.IGNORECASE)
_SEARCH: Final = re.compile(r"<search>(.{0,80}?)</search>", re.DOTALL)
_ANSWER: Final = re.compile(r"<answer>(.{0,80}?)</answer>|\\boxed(?:\{([^{}]{0,80})\})?", re.DOTALL)


class Forms(NamedTuple):
    """The last places in a prompt of a choice of verdicts, a search form and an answer form; -1 where there is none."""

    verdict: int
    search: int
    answer: int


@lru_cache(maxsize=4096)
def forms_in(text: str) -> Forms:
    """Find the forms that a prompt describes; a colleague's search or answer has names or numbers, and is none."""
    offers = list(OFFER.finditer(text))
    words = {word.lower() for offer in offers if offer[1] == offers[-1][1] for word in offer.groups()[1:] if word}
    both = bool(words.intersection(YES)) and bool(words.intersection(NO))
    return Forms(offers[-1].start() if both else -1, _last(_SEARCH, text), _last(_ANSWER, text))


def is_form(text: str) -> bool:
    """Whether a text is a placeholder, as in ``<search>your query</search>``: without capitals and digits."""
    return re.search(r"[A-Z0-9]", text) is None


def _last(pattern: re.Pattern[str], text: str) -> int:
    return max(
        (found.start() for found in pattern.finditer(text) if is_form("".join(filter(None, found.groups())))),
        default=-1,
    )


SEARCH_KEYS: Final = ("query", "queries", "q", "search_query", "keywords")

VISIT_KEYS: Final = ("id", "ids", "doc_id", "document_id", "url", "urls", "link", "page")

_TAG: Final = re.compile(r"<(search|information)>(.*?)</\1>", re.DOTALL)
_READ_AS: Final = re.compile(
    r"\A\[The (?:arguments were|tool call was) no JSON object; read as ([^\n]*)\]\n(.*)\Z", re.DOTALL
)


class Event(NamedTuple):
    """A ``search``, a ``visit`` or a ``result``, with its queries, documents or text."""

    kind: str
    values: tuple[str, ...]


def events(conversation: Conversation) -> Iterator[Event]:
    """The events of a conversation, oldest first, from replies, tool results, and messages that tell of them."""
    pending: list[Event | None] = []
    asked = False
    known = {tool.name for tool in conversation.tools}
    for message in conversation.messages:
        if message.role == "assistant":
            calls = parts(message.text).calls
            pending = [_read_call(call) if not known or call.name in known else None for call in calls]
            text = message.text
            if "<search>" in text and "</search>" not in text:
                text += "</search>"  # the server left the stop string out of the reply
            tagged = _tagged(text)
            yield from tagged
            asked = bool(tagged) and tagged[-1].kind == "search"
        elif message.role == "tool":
            event = pending.pop(0) if pending else None
            inside = response(message.text)
            text = message.text if inside is None else inside
            if event is None:
                event, text = _repaired(text)
            if event is not None:
                yield event
                yield Event("result", (text,))
            elif asked:
                yield Event("result", (text,))
        elif message.role == "user":
            tagged = _told(message.text)
            yield from tagged
            if asked and not any(event.kind == "result" for event in tagged):
                yield Event("result", (message.text,))
            asked = False
    yield from _tagged(conversation.opened)


@lru_cache(maxsize=8192)
def _tagged(text: str) -> tuple[Event, ...]:
    if "<search>" not in text and "<information>" not in text:
        return ()
    kinds = {"search": "search", "information": "result"}
    return tuple(Event(kinds[match[1]], (match[2].strip(),)) for match in _TAG.finditer(text))


@lru_cache(maxsize=8192)
def _told(text: str) -> tuple[Event, ...]:
    """Searches in a prompt; untagged text behind one is its result, and a placeholder is no search."""
    events: list[Event] = []
    end = 0
    for match in _TAG.finditer(text):
        if not is_form(match[2]):
            events += [*_found(events, text[end : match.start()]), *_tagged(match[0])]
            end = match.end()
    return tuple(events + _found(events, text[end:]))


def _found(events: Sequence[Event], text: str) -> list[Event]:
    return [Event("result", (text,))] if events and events[-1].kind == "search" and text.strip() else []


@lru_cache(maxsize=8192)
def _read_call(call: Call) -> Event | None:
    """A call as an event; None where it cannot have had an effect."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if not isinstance(arguments, dict):
        return None
    for kind, keys in (("search", SEARCH_KEYS), ("visit", VISIT_KEYS)):
        for key in keys:
            values = _texts(arguments.get(key))
            if values:
                return Event(kind, values)
    return None


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(item for item in value if isinstance(item, str))
    return ()


def _repaired(text: str) -> tuple[Event | None, str]:
    """The call that an observation says it repaired, and its result; no call where there is none or it failed."""
    match = _READ_AS.match(text)
    if match is None or match[2].startswith("Error: "):
        return None, text
    call = parts(f"<tool_call>{match[1]}</tool_call>").calls
    return _read_call(call[0] if call else Call("", match[1])), match[2]


_ALIAS_WORDS: Final = " also known as"
_HIT: Final = re.compile(
    r"^[ \t]*(?:\d{1,3}[.)]|[-*])?[ \t]*\[([^\]\s<>]{1,64})\][ \t]*(\S[^\n]{0,200})$", re.MULTILINE
)
_LISTS: Final = re.compile(r"^[ \t]*(?=1[.)][ \t]*\[)", re.MULTILINE)


class Hit(NamedTuple):
    """A search hit."""

    id: str
    title: str


class Subject(NamedTuple):
    """The question of a conversation, or its word problem, or neither."""

    chain: Chain | None
    steps: tuple[Step, ...] | None


# Kept for the next request that carries the same text.
facts_in: Final = lru_cache(maxsize=8192)(language.read)
_aliases_in: Final = lru_cache(maxsize=8192)(language.read_aliases)


@lru_cache(maxsize=4096)
def _subject_in(text: str) -> Subject:
    return Subject(language.parse_question(text), arithmetic.parse(text))


@lru_cache(maxsize=8192)
def _hits_in(text: str) -> tuple[Hit, ...]:
    return tuple(Hit(match[1], match[2].strip()) for match in _HIT.finditer(text))


def find_subject(conversation: Conversation) -> Subject:
    """The question or problem: the last that a user states, else one in a system message or the prompt."""
    for role in ("user", "system"):
        for message in reversed(conversation.messages):
            if message.role == role:
                subject = _subject_in(message.text)
                if subject != (None, None):
                    return subject
    return _subject_in(conversation.opened) if conversation.opened else Subject(None, None)


def chain_key(chain: Chain) -> str:
    """The question, independent of its wording and the prompt around it."""
    return "\x1f".join((chain.anchor, *chain.relations))


def query_text(name: str, relation: str, *, reverse: bool = False) -> str:
    """A query for one relation of one entity."""
    keywords = language.RELATIONS[relation].keywords
    return f"{keywords} {name}" if reverse else f"{name} {keywords}"


def again_text(episode: Episode) -> str:
    """A query for a hop that was searched in vain: by another name, then in another order."""
    if episode.searches == 1:
        return f"{episode.entity}{_ALIAS_WORDS}"
    return query_text(episode.entity, episode.relation, reverse=True)


class Names:
    """Names of one entity, as far as the text in view says."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._groups: dict[str, set[str]] = {}
        for text in texts:
            for name, alias in _aliases_in(text):
                group = self._groups.get(name, {name}) | self._groups.get(alias, {alias})
                for member in group:
                    self._groups[member] = group

    def of(self, name: str) -> set[str]:
        """All names of an entity, the given one included."""
        return self._groups.get(name) or {name}

    def stated(self, name: str, relation: str, texts: Iterable[str]) -> str | None:
        """The object that texts state for a relation of an entity under any of its names."""
        known = self.of(name)
        for text in texts:
            for fact in facts_in(text):
                if fact.relation == relation and fact.subject in known:
                    return fact.object
        return None


class Episode:
    """The state of an agent in a question."""

    def __init__(self, conversation: Conversation, chain: Chain) -> None:
        self.chain = chain
        self.path: list[str] = []  # the believed entity of each hop begun, the anchor first; empty where unknown
        self.last = "none"  # or search or visit
        self.hits: tuple[Hit, ...] = ()
        self.found = ""  # the text of the last search
        self.pages: list[str] = []  # results of visits since the first search of this hop
        self.visited: list[str] = []  # in this hop
        self.searches = 0  # of this hop
        self.view: list[str] = []  # every tool result, oldest first
        self.turns = sum(message.role == "assistant" for message in conversation.messages)
        self._searched: dict[tuple[int, str], int] = {}
        self.names = Names(())
        for event in events(conversation):
            self._take(event)
        self.names = Names(self.view)

    def infer(self, text: str) -> None:
        """Read a state off lists of hits in a text without searches.

        Facts of the question's chain in all lists but the last are believed; the last list is the result of the search
        for the next hop.
        """
        lists = _LISTS.split(text)[1:]
        if not lists:
            return
        self.view = lists
        self.names = Names(lists)
        self.path = [self.chain.anchor]
        for relation in self.chain.relations[:-1]:
            said = self.stated(self.entity, relation, lists[:-1])
            if said is None:
                break
            self.path.append(said)
        self.last, self.found, self.hits = "search", lists[-1], _hits_in(lists[-1])
        self.searches = max(len(lists) - self.hop, 1)

    @property
    def hop(self) -> int:
        """The current hop, from 0."""
        return max(len(self.path) - 1, 0)

    @property
    def entity(self) -> str:
        """The believed entity of this hop."""
        return self.path[-1] if self.path else self.chain.anchor

    @property
    def relation(self) -> str:
        """The relation asked of the entity."""
        return self.chain.relations[self.hop]

    @property
    def rest(self) -> Chain:
        """The question from the first search in view on; earlier hops count as right."""
        begun = next((hop for hop, name in enumerate(self.path) if name), 0)
        return Chain(self.path[begun], self.chain.relations[begun:]) if begun else self.chain

    @property
    def arrived(self) -> bool:
        """Whether the last search found the answer."""
        last = len(self.path) == len(self.chain.relations)
        return last and self.stated(self.entity, self.relation, [self.found]) is not None

    def stated(self, name: str, relation: str, texts: Sequence[str]) -> str | None:
        """The object that texts state, under the names in view."""
        return self.names.stated(name, relation, texts)

    def titled(self) -> Hit | None:
        """The hit of the last search that is the entity's own document."""
        known = self.names.of(self.entity)
        return next((hit for hit in self.hits if hit.title in known), None)

    def unvisited(self) -> list[Hit]:
        """Hits of the last search that were not visited in this hop."""
        return [hit for hit in self.hits if hit.id not in self.visited]

    def error(self) -> tuple[int, str | None] | None:
        """The first earlier hop whose result the text in view contradicts, with what it says instead.

        None in its place stands for a hop without support that was searched only once.
        """
        for hop in range(self.hop):
            if not self.path[hop]:
                continue
            said = self.stated(self.path[hop], self.chain.relations[hop], self.view)
            if said is None:
                if self._searched.get((hop, self.path[hop]), 0) < 2:
                    return hop, None
            elif self.path[hop + 1] not in self.names.of(said):
                return hop, said
        return None

    def _take(self, event: Event) -> None:
        if event.kind == "search":
            self._search(event.values)
        elif event.kind == "visit":
            if self.path:
                self.last = "visit"
                self.visited += event.values
        elif event.kind == "result" and self.last != "none":
            text = event.values[0]
            self.view.append(text)
            if self.last == "visit":
                self.pages.append(text)
            else:
                self.found = text
                self.hits = _hits_in(text)

    def _search(self, queries: tuple[str, ...]) -> None:
        for query in queries:
            name, relation = self._understand(query)
            if relation is None:
                if name != self.entity or not self.path:
                    continue
                hop = self.hop
            else:
                hop = self._hop_of(name, relation)
            if not self.path or hop != self.hop or name != self.path[-1]:
                self.path = [*self.path[:hop], *[""] * (hop - len(self.path)), name]
                self.pages, self.visited, self.searches = [], [], 0
            self.searches += 1
            self._searched[hop, name] = self._searched.get((hop, name), 0) + 1
            self.last, self.hits, self.found = "search", (), ""
            return

    def _understand(self, query: str) -> tuple[str, str | None]:
        best: str | None = None
        for relation in self.chain.relations:
            keywords = language.RELATIONS[relation].keywords
            if keywords in query and (best is None or len(keywords) > len(language.RELATIONS[best].keywords)):
                best = relation
        if best is None:
            return query.removesuffix(_ALIAS_WORDS).strip(), None
        return query.replace(language.RELATIONS[best].keywords, "", 1).strip(), best

    def _hop_of(self, name: str, relation: str) -> int:
        hops = [hop for hop, each in enumerate(self.chain.relations) if each == relation]
        now = len(self.path) - 1
        if len(hops) == 1:
            return hops[0]
        for hop in reversed(hops):
            if hop <= now and self.path[hop] == name:
                return hop
        names = Names(self.view)
        for hop in hops:
            if 0 < hop <= now + 1 and self.path[hop - 1]:
                said = names.stated(self.path[hop - 1], self.chain.relations[hop - 1], self.view)
                if said is not None and name in names.of(said):
                    return hop
        if now + 1 in hops:
            return now + 1
        earlier = [hop for hop in hops if hop <= now]
        return earlier[-1] if earlier else hops[0]
