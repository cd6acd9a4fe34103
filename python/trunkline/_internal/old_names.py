"""Where names of earlier releases are now: run files and command lines hold names of ours for one release.

The table is generated: each line has a module, and behind it the modules that went into it, or the names that are
called otherwise there.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

__all__ = ["current_name", "earlier_names", "old_method", "renamed"]

_MODULES = """
_internal.aio: llm.bell llm.slots runtime.closed runtime.home runtime.permits
_internal.resources: llm.descriptors runtime.collector runtime.memory
_internal.serialization: crossing
_internal.text: llm.text printable store.redact
_internal.validation: bounds
agent: rollout.agent rollout.speech
backends.base: runtime.elsewhere
backends.inline: runtime.inline
backends.local: runtime.local runtime.supervisor
backends.ray: runtime.actor runtime.ray runtime.seat
backends.ray_cluster: runtime.cluster
cli.demo: cli.probe cli.sim
cli.live: cli.drive cli.progress cli.watching
cli.options: cli.confidences cli.named cli.rewards
cli.output: cli.outline cli.plain
cli.post: cli.answers cli.export cli.report cli.score
cli.run: cli.resume
cli.show: cli.check cli.compare
cli.tables: cli.agents cli.endpoints cli.measures cli.table cli.tasks cli.times
cli.targets: cli.llms cli.runfile cli.teams
cli.tree_view: cli.picture
compat: compat.parallel_rollout
compat.aggregate: compat.parallel_rollout.aggregate compat.parallel_rollout.node compat.parallel_rollout.options
compat.rollouts: compat.parallel_rollout.conversation compat.parallel_rollout.results compat.parallel_rollout.rollouts
    compat.parallel_rollout.tools
controller.budget: runtime.closing runtime.spent runtime.treasury
controller.controller: runtime.controller
controller.leases: runtime.flow runtime.lender runtime.lenders runtime.stock
controller.poison_tasks: runtime.blame runtime.quarantine
controller.progress: runtime.refusals runtime.tally
controller.scheduler: runtime.dispatch runtime.handout runtime.roster
controller.supervisor: runtime.pulse runtime.restarts runtime.supervision
controller.weights: runtime.versions
llm.batch.activity: llm.lanes llm.several
llm.batch.batcher: llm.batch llm.batcher llm.queues
llm.batch.completion: llm.completion llm.prompt
llm.capabilities: llm.probe llm.regions
llm.config: llm.spec
llm.dialects.base: llm.dialects.calls llm.dialects.dialect llm.dialects.thinking
llm.dialects.builtin: llm.dialects.catalog llm.dialects.hermes llm.dialects.native llm.dialects.search_r1
llm.http.aiohttp_transport: llm.aio llm.proxy llm.switch
llm.http.client: llm.call llm.http
llm.http.connection: llm.connection llm.incoming
llm.http.connection_pool: llm.plain llm.pool
llm.http.outcome: llm.classify llm.retry
llm.http.transport: llm.transport
llm.limits.adaptive_window: llm.window
llm.limits.rate_limiter: llm.gate llm.limiter llm.tenant
llm.limits.router: llm.endpoint llm.router
llm.limits.token_bucket: llm.bucket llm.quota
llm.openai_client: llm.client
llm.pricing: llm.names llm.price
llm.response: llm.recorded llm.reply
llm.token_ids: llm.renderer
llm.token_ids.base: llm.renderer.protocol llm.renderer.suffix llm.tokens
llm.token_ids.renderers: llm.renderer.choose llm.renderer.local llm.renderer.server llm.renderer.template
llm.types: llm.limits llm.protocol
observability.logging: runtime.logs
observability.observers: runtime.audience runtime.observer runtime.snapshot runtime.stall
observability.opentelemetry: runtime.tracing
observability.prometheus: runtime.metrics
protocol.backend: runtime.backend
protocol.channel: runtime.channel
protocol.job: runtime.job runtime.llms runtime.needs
protocol.messages: runtime.loans runtime.message runtime.wire
rollout.checkpoint: rollout.rounds
rollout.drivers: rollout.loop
rollout.environments: rollout.snapshots rollout.state
rollout.growth: rollout.barrier rollout.players
rollout.moves: rollout.opening
rollout.programs.context: rollout.play rollout.said
rollout.programs.executor: rollout.errands
rollout.programs.replay: rollout.journal rollout.replay rollout.standing rollout.ticks
rollout.programs.resources: rollout.program
rollout.rollout: rollout.resume
rollout.sampling.completions: rollout.draws rollout.flights rollout.switchboard
rollout.sampling.inflight: rollout.diary rollout.underway rollout.weights
rollout.sampling.prompt: rollout.conversation rollout.seed
rollout.sampling.sampler: rollout.desk rollout.siblings
rollout.sampling.token_prompts: rollout.exact
rollout.sampling.turns: rollout.parked rollout.turns
rollout.side_effects: rollout.effects
rollout.task_budget: rollout.hold rollout.purse
rollout.tree_runner: rollout.scores rollout.session
rollout.types: rollout.outcome
runner: runtime
runner.amend: runtime.reporting runtime.rescoring score.history
runner.continue_from: runtime.earlier
runner.dynamic_sampling: runtime.groups
runner.options: runtime.options
runner.plan: runtime.draft runtime.hosting runtime.plan runtime.watchers
runner.pool: runtime.pool
runner.preflight: runtime.afford runtime.outline runtime.ready
runner.result: runtime.result
runner.resume: runtime.changes runtime.unfinished
runner.run: runtime.news runtime.run
runner.stored_job: runtime.stored
runner.worker_pool: runtime.fleet
scoring: score
scoring.aggregators: score.aggregators
scoring.aggregators.aggregate: score.aggregators.aggregate score.aggregators.catalog
scoring.aggregators.base: score.aggregators.aggregator
scoring.aggregators.llm: score.aggregators.integrate score.aggregators.picking score.aggregators.prompts
    score.aggregators.synthesis
scoring.aggregators.voting: score.aggregators.ballot score.aggregators.clusters score.aggregators.votes
scoring.answers: score.actions score.answers
scoring.confidence: score.confidence
scoring.diversity: score.diversity
scoring.filters: score.filters score.filters.catalog
scoring.filters.base: score.filters.filter score.filters.group score.filters.options
scoring.filters.builtin: score.filters.overlong score.filters.prefix score.filters.presets score.filters.repetition
    score.filters.variance score.filters.void
scoring.metrics: score.metrics
scoring.metrics.at_k: score.metrics.naming score.metrics.passing score.metrics.shares score.metrics.solving
    score.metrics.voting
scoring.metrics.comparison: score.metrics.pairing score.metrics.reliability
scoring.metrics.intervals: score.metrics.averages score.metrics.estimate score.metrics.interval
scoring.model_client: score.asking
scoring.notes: score.notes score.replays score.verdicts
scoring.reports: score.reports
scoring.reports.extractive: score.reports.extract score.reports.outcome
scoring.reports.reporter: score.reports.prompts score.reports.reporter
scoring.reports.segments: score.reports.segments score.reports.sharing score.reports.steps
scoring.rewards: score.rewards score.rewards.catalog
scoring.rewards.base: score.rewards.naming score.rewards.policy score.rewards.reward score.values
scoring.rewards.code: score.rewards.code score.rewards.code.cases score.rewards.code.code
scoring.rewards.grading: score.rewards.calling score.rewards.grading score.rewards.weighting
scoring.rewards.judge: score.rewards.judge score.rewards.judge.grades score.rewards.judge.judge
    score.rewards.judge.prompt
scoring.rewards.matching: score.rewards.choice score.rewards.f1 score.rewards.matching
scoring.rewards.maths: score.rewards.equality score.rewards.maths
sim.model.agents: sim.model.agent sim.model.solver sim.model.sure sim.model.tagged
sim.model.belief: sim.model.calls
sim.model.chat_template: sim.model.chat
sim.model.choices: sim.model.choice sim.model.dials
sim.model.episode: sim.model.events sim.model.forms
sim.model.generation: sim.model.draft sim.model.mind
sim.model.registry: sim.model.catalog sim.model.team
sim.model.tokenizer: sim.model.bpe
sim.model.writers: sim.model.picker sim.model.reporter sim.model.verdict sim.model.writer
sim.server.api: sim.server.chat_api sim.server.completion_api sim.server.generate_api
sim.server.app: sim.server.serve
sim.server.latency: sim.server.metrics sim.server.prefix
sim.server.options: sim.server.settings
sim.server.sampling: sim.server.generate sim.server.logprobs
sim.world.files: sim.world.proof
sim.world.language: sim.world.relations
sim.world.names: sim.world.draws sim.world.prose
sim.world.search: sim.world.index
store.amend: store.copies
store.check: store.audit
store.datasets.loader: store.columnar store.dataset
store.datasets.text: store.fields store.formats store.place
store.export.export: store.export.choice
store.export.formats: store.export.chat store.export.parallelmuse store.export.transcript
store.export.parquet: store.export.columns
store.export.target: store.export.leaves store.export.lines
store.lock: store.files
store.schema: store.calltable store.deltakey
store.sqlite: store.disk store.identify
store.state: store.resumption store.scorings store.standing
store.stats.calls: store.calls
store.stats.compare: store.compare
store.stats.metrics: store.measures
store.stats.profile: store.busy store.profile store.rows
store.stats.summary: store.funds store.summary
store.stats.tasks: store.judgements store.tasks
strategies: rollout.strategies rollout.strategies.catalog
strategies.adaptive: rollout.strategies.adaptive
strategies.base: rollout.strategy rollout.view
strategies.chain: rollout.strategies.chain
strategies.entropy_tree: rollout.strategies.entropy_tree
strategies.mcts: rollout.strategies.mcts
strategies.partial: rollout.branching rollout.strategies.partial
strategies.stopping: rollout.stopping
strategies.tree_grpo: rollout.strategies.tree_grpo
strategies.tree_search: rollout.strategies.tree_search
team: team.programs.catalog
team.builtin: team.programs team.programs.experts team.programs.math team.programs.search team.programs.verdict
team.prompts: team.frames
team.role: team.template
team.team: team.change team.play
tools.calls: tools.call tools.result tools.syntax
tools.executor: tools.foreign tools.threads
tools.isolation: tools.sandbox
tools.isolation.child: tools.performer tools.process
tools.isolation.confinement: tools.sandbox.walls
tools.isolation.messages: tools.frames
tools.isolation.process_pool: tools.helper tools.processes
tools.isolation.sandbox: tools.sandbox.sandbox
tools.isolation.sandbox_supervisor: tools.sandbox.begin tools.sandbox.family tools.sandbox.supervisor
tools.json_repair: tools.repair
tools.openai_definition: tools.defined
tools.schema: tools.docstring
tools.tool: tools.policy
tools.toolbox: tools.cache tools.runner
train.rows: train.table
train.selection: train.calls train.records
tree.answers: tree.vote
tree.records: tree.failure tree.weights
tree.views: tree.node tree.trajectory tree.tree
worker.engine: runtime.engine runtime.opened
worker.health: runtime.vitals runtime.watchdog
worker.leases: runtime.borrower runtime.lease runtime.rates
worker.log_relay: runtime.relay
worker.main: runtime.host runtime.worker
worker.outbox: runtime.outbox
"""

_NAMES = """
_internal.aio: llm.bell:Bell=InterruptibleSleep llm.slots:Slots=PerLoopSemaphore
    runtime.closed:to_the_end=wait_uninterrupted runtime.home:Errand=LoopTask runtime.home:Home=LoopThread
    runtime.permits:Permits=ShrinkableSemaphore
_internal.serialization: crossing:Crossing=SerializedObject crossing:home_of=module_of
_internal.text: printable:said=format_error types:JSON=JSON
_internal.validation: bounds:amounts=parse_amounts bounds:choice=check_choice bounds:kind=type_phrase
    bounds:number=check_float bounds:shown=short_repr bounds:size=check_size bounds:text=check_text
    bounds:whole=check_int
agent: rollout.agent:Kit=CompiledAgent rollout.speech:Speech=BoundDialect
backends.base: runtime.elsewhere:Elsewhere=RemoteBackend
backends.inline: runtime.inline:Inline=InlineBackend
backends.local: runtime.local:Local=LocalBackend runtime.supervisor:Process=WorkerProcess
backends.ray: runtime.ray:Ray=RayBackend runtime.seat:Seat=ActorHandle
cli.live: cli.progress:Progress=ProgressLine
cli.post: cli.answers:Answered=TaskAnswer cli.export:told=summary_line
cli.tables: cli.measures:Row=MeasureRow
cli.targets: cli.runfile:standing=run_file_status
controller.budget: runtime.closing:Closing=RunLimits runtime.spent:Spent=RunSpending runtime.spent:worth=cost_of_call
    runtime.treasury:Treasury=RunBudget
controller.leases: runtime.flow:Flow=RateAllocator runtime.lender:Lender=LeaseServer
    runtime.lenders:Lenders=LeaseServer runtime.stock:Stock=SlotAllocator runtime.stock:divide=max_min_shares
controller.component: runtime.blame:Toll=DeathReport
controller.poison_tasks: runtime.blame:Blame=PoisonTaskDetector
controller.progress: runtime.refusals:Refusals=RejectionDetector runtime.tally:Tally=ProgressCounter
controller.scheduler: runtime.dispatch:Dispatch=TaskDispatcher runtime.handout:Handout=TaskQueue
    runtime.roster:Roster=WorkerRegistry
controller.supervisor: runtime.pulse:Pulse=HeartbeatMonitor runtime.restarts:Restarts=RestartPolicy
    runtime.supervision:Supervision=Supervisor
controller.weights: runtime.versions:Versions=WeightCoordinator
llm.batch.activity: llm.lanes:Lane=RolloutActivity llm.lanes:Lanes=Activity llm.lanes:Masks=MaskActivityCounter
    llm.several:SeveralLane=CombinedRolloutActivity llm.several:SeveralLanes=CombinedActivity
llm.batch.batcher: llm.batch:Engine=BatchEngine llm.queues:Part=PendingPrompt llm.queues:Queue=PromptQueue
    llm.queues:Queues=PromptQueues
llm.batch.completion: llm.completion:Taken=RequestTime
llm.http.client: llm.call:Call=PendingCall llm.call:Reader=BodyReader
llm.http.connection: llm.connection:Bounds=ConnectionLimits llm.connection:Home=ConnectionOwner
llm.http.connection_pool: llm.pool:Pool=ConnectionPool
llm.http.outcome: llm.classify:Site=RequestContext llm.classify:Verdict=Outcome
llm.limits.rate_limiter: llm.gate:Gate=EndpointQueue llm.tenant:Tenant=SharedSlots
llm.limits.token_bucket: llm.bucket:Bucket=TokenBucket llm.bucket:Lease=RateLease llm.bucket:LocalLease=LocalRates
    llm.quota:Quota=ServerRateLimits
llm.response: llm.recorded:Step=RecordedStep
llm.token_ids.renderers: llm.renderer.template:Template=ChatTemplate
llm.types: llm.protocol:Choice=ReplyChoice llm.protocol:Take=ReplyReader
observability.logging: runtime.relay:relog=relog
observability.observers: runtime.audience:Audience=ObserverHub runtime.stall:Stalls=StallDetector
protocol.backend: runtime.backend:Gone=WorkerExited runtime.backend:Guest=BorrowedBackend
protocol.job: runtime.engine:slots_for=slots_for runtime.handout:Refill=Refill runtime.job:Packed=EncodedJob
    runtime.lender:parties=parties
protocol.messages: runtime.message:Message=ProtocolMessage runtime.loans:Allot=LeaseGrant
    runtime.loans:Ask=LeaseRequest runtime.loans:Denied=LeaseGrant runtime.loans:Draw=LeaseRequest
    runtime.loans:Drawn=LeaseDrawn runtime.loans:Grant=LeaseGrant runtime.loans:Lent=LeaseGrant
    runtime.loans:Recall=LeaseRevoke runtime.loans:Reclaim=LeaseRevoke runtime.loans:Refund=LeaseReturn
    runtime.loans:Repaid=LeaseReturn runtime.loans:Return=LeaseReturn runtime.loans:Want=LeaseRequest
    runtime.vitals:Door=EndpointState runtime.vitals:EngineState=WorkerState runtime.vitals:Slow=OldestRollout
    runtime.wire:Changed=WeightsSet runtime.wire:Cut=CutTasks runtime.wire:Earlier=EarlierDeltas
    runtime.wire:Held=TurnsHeld runtime.wire:Hold=HoldTurns runtime.wire:Ready=WorkerReady runtime.wire:Stop=StopRun
    runtime.wire:Weights=SetWeights runtime.wire:Work=AssignTasks
rollout.budget: rollout.budget:words=format_refusal
rollout.checkpoint: rollout.rounds:Cut=CutMark rollout.rounds:Judged=JudgedMark rollout.rounds:Opened=ForkRecord
    rollout.rounds:Past=Checkpoint rollout.rounds:Refused=RefusedMark rollout.rounds:Round=RoundMark
    rollout.rounds:Served=ServedMark rollout.rounds:Spent=SpentMark rollout.rounds:Taken=CarriedOver
rollout.drivers: rollout.program:ProgramFunction=ProgramFunction rollout.program:Stage=ProgramDriver
rollout.environments: rollout.snapshots:Held=KeptSnapshot rollout.snapshots:Snapshots=SnapshotCache
    rollout.state:State=EnvironmentHandle rollout.state:States=EnvironmentManager
rollout.growth: rollout.players:Players=RunningRollouts
rollout.moves: rollout.opening:plant=write_prompt
rollout.programs.context: rollout.play:Play=ProgramContext rollout.said:Answered=ModelTurn
    rollout.said:Cut=MessagePieces rollout.said:Noted=ContextMessage rollout.said:Sent=ContextRef
rollout.programs.executor: rollout.errands:Errands=ProgramExecutor
rollout.programs.replay: rollout.replay:Place=ReplaySlot rollout.standing:Standing=ReplayState
rollout.sampling.completions: rollout.draws:Draws=CompletionClient rollout.flights:Flight=SharedRequest
    rollout.flights:Flights=SingleFlight rollout.switchboard:Switchboard=CompletionClients
rollout.sampling.inflight: rollout.diary:Diary=TraceRecorder rollout.diary:Leg=SpanRecord
    rollout.underway:Underway=TurnGate rollout.weights:Asked=TurnInFlight rollout.weights:Weights=WeightGate
rollout.sampling.prompt: rollout.conversation:Conversation=PromptBuilder
rollout.sampling.sampler: rollout.desk:Ask=TurnRequest rollout.desk:Desk=Sampler
    rollout.siblings:Siblings=SampleBatcher
rollout.sampling.token_prompts: rollout.exact:Exact=TokenPromptBuilder rollout.exact:ExactTurns=TokenTurnReader
    rollout.exact:Prompt=TokenPrompt
rollout.sampling.turns: rollout.parked:Asked=AskRecord rollout.parked:Landed=AppendedTurn
    rollout.parked:Parked=PendingTurn rollout.turns:Turns=TurnReader
rollout.side_effects: rollout.effects:Effects=SideEffectLog rollout.effects:doubts=unresolved_effects
rollout.task_budget: rollout.hold:Hold=Reservation rollout.purse:Allowance=BudgetSources
    rollout.purse:Denied=BudgetDenied rollout.purse:Purse=TaskBudget
rollout.tree_runner: rollout.scores:Scores=RoundScorer rollout.session:Session=TreeRunner
rollout.types: rollout.desk:Outlet=TurnSink rollout.exact:Kept=KeptPrefix rollout.outcome:Outcome=Ending
    rollout.outcome:outcome=ending_of rollout.rollout:Finished=Finished rollout.turns:Told=DrawCallback
    rollout.turns:Turn=Turn
runner.continue_from: runtime.earlier:EarlierRun=SourceRun
runner.options: runtime.options:Given=ResolvedOptions runtime.options:given=resolve_options
runner.plan: runtime.draft:Draft=RunSpec runtime.plan:Plan=PreparedRun
runner.result: runtime.result:Shelf=TemporaryRunDir
runner.resume: runtime.unfinished:UnfinishedRun=ResumableRun
runner.run: runtime.news:News=CompletionStream
runner.worker_pool: runtime.fleet:Fleet=WorkerPool
scoring.model_client: score.asking:Asked=ModelReply score.asking:Asker=ModelClient
scoring.reports.reporter: score.reports.reporter:Work=TreeReports
scoring.reports.segments: score.reports.steps:Step=ReportStep
scoring.rewards: score.rewards:Part=RewardPart
scoring.rewards.base: score.rewards.policy:Policy=RewardPolicy score.rewards.reward:Part=RewardPart
    score.values:worth=search_value
scoring.rewards.matching: score.rewards.choice:Options=ChoiceOptions
store.datasets.text: store.place:Place=RowLocation
store.export.export: store.export.choice:Choice=ExportSelection
store.export.formats: store.export.chat:FIELDS=CHAT_FIELDS store.export.parallelmuse:FIELDS=PARALLELMUSE_FIELDS
store.schema: store.schema:Ending=TreeEnding store.schema:Versions=FileVersions
store.state: store.scorings:SCORINGS=RESCORINGS store.scorings:scorings=rescorings store.standing:Standing=RunProgress
    store.standing:standing=run_progress
store.stats.compare: store.compare:Changed=ChangedTask
store.stats.metrics: store.measures:Measures=RunMetrics store.measures:measures=run_metrics
store.stats.profile: store.rows:Rows=RoleRows
store.stats.summary: store.funds:Funds=BudgetReport store.funds:funds=budget_report store.summary:Taken=TakenOver
store.stats.tasks: store.judgements:Judgements=FilterStats
strategies.base: rollout.opening:prompt=prompt rollout.rounds:TOOK=TOOK rollout.rounds:was_to_move=was_to_move
team.builtin: team.programs.verdict:said_yes=is_yes
team.prompts: team.frames:Frames=TranscriptPrompts
team.team: team.play:Said=RoleReply
tools.executor: tools.foreign:Foreign=UserCodeRunner
tools.isolation.child: tools.performer:Performer=CallRunner
tools.isolation.confinement: tools.sandbox.walls:Limits=ResourceLimits tools.sandbox.walls:Refused=ConfinementError
tools.isolation.messages: tools.frames:Broken=ToolBroken tools.frames:Ended=ToolEnded tools.frames:Ran=CallResult
    tools.frames:Ready=ToolReady tools.frames:Run=CallRequest tools.frames:Setup=ToolSetup
tools.isolation.process_pool: tools.helper:Gone=ToolProcessExited tools.helper:Helper=ToolProcess
    tools.processes:Processes=ToolProcessPool
tools.isolation.sandbox: tools.sandbox.sandbox:Ran=ProgramResult
tools.isolation.sandbox_supervisor: tools.sandbox.begin:Place=ProgramPlace tools.sandbox.begin:begin=spawn
    tools.sandbox.supervisor:Supervisor=SandboxSupervisor
tools.json_repair: tools.repair:Mended=RepairedCall
tools.openai_definition: tools.defined:Defined=DefinedTool tools.defined:Given=DefinitionSchema
tools.schema: tools.schema:ArgumentError=BadArguments tools.schema:Slot=EnvironmentSlot
tools.tool: tools.environment:check_environment=check_environment tools.policy:Policy=ToolPolicy
train.advantages: train.advantages:Worth=TurnValue
train.selection: train.calls:Call=AgentCall train.calls:Calls=AgentCalls
worker.engine: runtime.opened:OpenLLMs=LLMClients
worker.health: runtime.vitals:feel=collect_state runtime.watchdog:culprit=blocking_function
worker.leases: runtime.borrower:Borrower=SlotLeases runtime.lease:Leases=BudgetLeases
    runtime.rates:LeasedRates=RateLeases
worker.log_relay: runtime.relay:Relay=LogForwarder
worker.outbox: runtime.outbox:Growth=TreeSink
"""


@cache
def _tables() -> tuple[dict[str, str], dict[str, str]]:
    """The module of each old module, and ``module:name`` of each old one that is called otherwise."""
    modules: dict[str, str] = {}
    names: dict[str, str] = {}
    for table, found in ((_MODULES, modules), (_NAMES, names)):
        module = ""
        for word in table.split():
            if word.endswith(":"):
                module = word[:-1]
            else:
                old, _, name = word.partition("=")
                found[old] = f"{module}:{name}" if name else module
    return modules, names


def current_name(module: str, qualname: str = "") -> tuple[str, str]:
    """Return where an object is now that an earlier release knew by this name.

    Args:
        module: A dotted name; one that is not of this package stays.
        qualname: The object's name in it, dotted for what a class holds; empty for the module.

    Returns:
        The module and the name in it.
    """
    package, _, inside = module.partition(".")
    if package != "trunkline":
        return module, qualname
    modules, names = _tables()
    first, dot, rest = qualname.partition(".")
    if (found := names.get(f"{inside}:{first}")) is not None:
        home, _, name = found.partition(":")
        return f"trunkline.{home}", name + dot + rest
    return (f"trunkline.{modules[inside]}" if inside in modules else module), qualname


def renamed(name: str) -> str:
    """Return a name of the form ``module:qualname`` as it is now; any other text stays."""
    module, colon, qualname = name.partition(":")
    return ":".join(current_name(module, qualname)) if colon else name


def earlier_names(name: str) -> list[str]:
    """Return each name that an earlier release can have had for a ``module:qualname`` of now."""
    module, _, qualname = name.partition(":")
    package, _, inside = module.partition(".")
    if package != "trunkline":
        return []
    modules, names = _tables()
    first, dot, rest = qualname.partition(".")
    found = [old + dot + rest for old, new in names.items() if new == f"{inside}:{first}"]
    found += [f"{old}:{qualname}" for old, new in modules.items() if new == inside]
    return [f"trunkline.{one}" for one in found]


def old_method(old: str, new: str) -> property:
    """Return an attribute that leads from the old name of a public method to its new one, with a warning."""

    def lead(self: Any) -> Any:
        warnings.warn(f"{type(self).__name__}.{old} is called {new} now", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(lead)
