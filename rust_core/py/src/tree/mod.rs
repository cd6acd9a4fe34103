//! `CoreTree`.

mod access;
pub mod view;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyTuple};
use trunkline_core as core;
use trunkline_core::{
    Call, ContextId, Keyword, Kind, NameId, NodeId, RolloutId, Source, Termination, TokenCount, ToolResult, Uncertainty,
};

use self::access::LARGE_BYTES;
use crate::buffer::view;
use crate::calls::{ModelFields, ToolFields, log};
use crate::guard::Guard;
use crate::input::{Data, Text, number, numbers};
use crate::tokens::TokenBuffer;
use crate::tree::view::{NodeView, RolloutRow, RolloutView};

type TokenTotals = (u64, u64, u64, u64, u64, u64, bool);

const fn totals(all: &core::Totals) -> TokenTotals {
    (all.flat, all.tree, all.flat_generated, all.tree_generated, all.longest, all.unreported, all.exact)
}

/// Everything done for one task: nodes (message-level events), rollouts (tries), and the bytes they share.
#[pyclass(frozen, module = "trunkline._core")]
pub struct CoreTree(Guard<core::Tree>);

#[pymethods]
impl CoreTree {
    #[new]
    fn new() -> Self {
        Self(Guard::new(core::Tree::new()))
    }

    /// Intern a short string and return its id; 0 is the empty string.
    #[pyo3(signature = (text, /))]
    fn name(&self, py: Python<'_>, text: Text<'_>) -> PyResult<u32> {
        self.0.with(py, |tree| tree.name(&text)).map(NameId::get)
    }

    /// Append a message that no rollout owns and return its node.
    #[pyo3(signature = (parent, kind, message, agent=0, tokens=None, /))]
    fn append(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] parent: u32,
        #[pyo3(from_py_with = number)] kind: u32,
        message: Data<'_>,
        #[pyo3(from_py_with = number)] agent: u32,
        tokens: Option<&TokenBuffer>,
    ) -> PyResult<u32> {
        let message: &[u8] = &message;
        self.say(py, tokens, |tree, tokens| {
            tree.append(parent.into(), Kind::loose(kind)?, message, tokens, agent.into())
        })
        .map(NodeId::get)
    }

    /// Open a rollout at a fork point and return its id.
    #[pyo3(signature = (point, path, subgroup=0, /))]
    fn open(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] point: u32,
        #[pyo3(from_py_with = numbers)] path: Vec<u32>,
        #[pyo3(from_py_with = number)] subgroup: u32,
    ) -> PyResult<u32> {
        self.0.with(py, |tree| tree.open(point.into(), &path, subgroup)).map(RolloutId::get)
    }

    /// Append a model turn at the rollout's leaf, move the leaf there, and count its usage. Returns the node.
    #[expect(clippy::too_many_arguments, reason = "positional arguments cost less than an object per turn")]
    #[pyo3(signature = (
        rollout, message, agent, namespace, finish, prompt, cached, generated, retries, micros, aside=None, context=None,
        tokens=None, /
    ))]
    fn turn(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] rollout: u32,
        message: Data<'_>,
        #[pyo3(from_py_with = number)] agent: u32,
        #[pyo3(from_py_with = number)] namespace: u32,
        #[pyo3(from_py_with = number)] finish: u32,
        #[pyo3(from_py_with = number)] prompt: i64,
        #[pyo3(from_py_with = number)] cached: i64,
        #[pyo3(from_py_with = number)] generated: i64,
        #[pyo3(from_py_with = number)] retries: u32,
        #[pyo3(from_py_with = number)] micros: u64,
        aside: Option<Data<'_>>,
        #[pyo3(from_py_with = number)] context: Option<u32>,
        tokens: Option<&TokenBuffer>,
    ) -> PyResult<u32> {
        let (message, aside): (&[u8], _) = (&message, aside.as_deref());
        let uncertainty = tokens.map_or(Uncertainty::UNKNOWN, |tokens| tokens.uncertainty);
        self.say(py, tokens, |tree, tokens| {
            let not_text = |_| core::Error::Text { what: "the aside" };
            let call = Call {
                agent: agent.into(),
                namespace: namespace.into(),
                finish: finish.into(),
                prompt: TokenCount::new(prompt, "prompt")?,
                cached: TokenCount::new(cached, "cached")?,
                generated: TokenCount::new(generated, "generated")?,
                retries,
                micros,
                aside: aside.map(std::str::from_utf8).transpose().map_err(not_text)?,
                context: context.map(ContextId::new),
                uncertainty,
            };
            tree.turn(rollout.into(), message, tokens, call)
        })
        .map(NodeId::get)
    }

    /// Append a tool observation at the rollout's leaf, move the leaf there, and count the call. Returns the node.
    #[pyo3(signature = (rollout, message, agent, micros, failed=false, tokens=None, /))]
    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn observe(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] rollout: u32,
        message: Data<'_>,
        #[pyo3(from_py_with = number)] agent: u32,
        #[pyo3(from_py_with = number)] micros: u64,
        failed: bool,
        tokens: Option<&TokenBuffer>,
    ) -> PyResult<u32> {
        let message: &[u8] = &message;
        self.say(py, tokens, |tree, tokens| tree.observe(rollout.into(), message, tokens, agent.into(), micros, failed))
            .map(NodeId::get)
    }

    /// Append the results of a turn's tool calls as `(text, returned, micros)`; returns the last node and the bytes.
    #[pyo3(signature = (rollout, agent, turn, results, /))]
    fn observe_results(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] rollout: u32,
        agent: Text<'_>,
        #[pyo3(from_py_with = number)] turn: u32,
        results: Vec<(PyBackedStr, bool, u64)>,
    ) -> PyResult<(u32, usize)> {
        let results =
            results.iter().map(|(text, returned, micros)| ToolResult { text, micros: *micros, failed: !returned });
        let results = results.collect::<Vec<_>>();
        self.0.with(py, |tree| {
            let agent = tree.name(&agent)?;
            let (leaf, size) = tree.observe_results(rollout.into(), agent, turn, &results)?;
            Ok((leaf.get(), size))
        })
    }

    /// Append a message at the rollout's leaf that neither its model nor a tool said, and move the leaf there. Returns the
    /// node.
    #[pyo3(signature = (rollout, message, agent, tokens=None, /))]
    fn tell(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] rollout: u32,
        message: Data<'_>,
        #[pyo3(from_py_with = number)] agent: u32,
        tokens: Option<&TokenBuffer>,
    ) -> PyResult<u32> {
        let message: &[u8] = &message;
        self.say(py, tokens, |tree, tokens| tree.tell(rollout.into(), message, tokens, agent.into())).map(NodeId::get)
    }

    /// Give a prompt, an observation or a message its tokens, once; the same ids again change nothing.
    #[pyo3(signature = (node, tokens, /))]
    fn tokenise(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32, tokens: &TokenBuffer) -> PyResult<()> {
        self.say(py, Some(tokens), |tree, tokens| tree.tokenise(node.into(), tokens.unwrap_or_default()))
    }

    /// End a rollout for good; raises if it has ended already.
    #[pyo3(signature = (rollout, termination, answer=None, error=None, /))]
    fn close(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] rollout: u32,
        termination: Text<'_>,
        answer: Option<Text<'_>>,
        error: Option<Text<'_>>,
    ) -> PyResult<()> {
        let close = |tree: &mut core::Tree| {
            tree.close(rollout.into(), Termination::from_word(&termination)?, answer.as_deref(), error.as_deref())
        };
        self.0.with(py, close)
    }

    /// Write a note on a rollout, in the place of the one before.
    #[pyo3(signature = (rollout, text, /))]
    fn note(&self, py: Python<'_>, #[pyo3(from_py_with = number)] rollout: u32, text: Text<'_>) -> PyResult<()> {
        self.0.with(py, |tree| tree.note(rollout.into(), &text))
    }

    /// Append a mark for a resumed run.
    #[pyo3(signature = (text, /))]
    fn mark(&self, py: Python<'_>, text: Text<'_>) -> PyResult<()> {
        self.0.with(py, |tree| tree.mark(&text))
    }

    /// The marks, from this one on.
    #[pyo3(signature = (first=0, /))]
    fn marks(&self, py: Python<'_>, #[pyo3(from_py_with = number)] first: u32) -> PyResult<Vec<String>> {
        self.0.with(py, |tree| Ok(tree.marks(first as usize).map(str::to_owned).collect()))
    }

    /// Path, turn, next draw and subgroup of the state at a node.
    #[pyo3(signature = (node, /))]
    fn state(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<access::State> {
        let core::ForkPoint { path, turn, draw, subgroup } = self.0.with(py, |tree| tree.state(node.into()))?;
        Ok((path, turn, draw, subgroup))
    }

    /// Open the next draws of the state at a node, behind a message where there is one; returns the id of the first.
    #[pyo3(signature = (node, n, message=None, subgroup=None, /))]
    fn fork(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] node: u32,
        #[pyo3(from_py_with = number)] n: u32,
        message: Option<Data<'_>>,
        subgroup: Option<u32>,
    ) -> PyResult<u32> {
        self.0.with(py, |tree| tree.fork(node.into(), n, message.as_deref(), subgroup)).map(RolloutId::get)
    }

    /// Set the reward of an ended rollout; NaN means unscored.
    #[pyo3(signature = (rollout, reward, /))]
    fn score(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] rollout: u32,
        #[pyo3(from_py_with = number)] reward: f64,
    ) -> PyResult<()> {
        self.0.with(py, |tree| tree.score(rollout.into(), reward))
    }

    /// Intern a message, or a piece of one, without making a node of it.
    #[pyo3(signature = (message, /))]
    fn fragment(&self, py: Python<'_>, message: Data<'_>) -> PyResult<u32> {
        self.0.with(py, |tree| tree.fragment(&message)).map(core::FragmentId::get)
    }

    /// Record an ordered list of fragments that was really sent, where it is not a path.
    #[pyo3(signature = (fragments, /))]
    fn context(&self, py: Python<'_>, #[pyo3(from_py_with = numbers)] fragments: Vec<u32>) -> PyResult<u32> {
        self.0.with(py, |tree| tree.context(&fragments)).map(ContextId::get)
    }

    /// Note messages that will be sent behind a path.
    #[pyo3(signature = (node, fragments, /))]
    fn draft(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] node: u32,
        #[pyo3(from_py_with = numbers)] fragments: Vec<u32>,
    ) -> PyResult<u32> {
        self.0.with(py, |tree| tree.draft(node.into(), &fragments))
    }

    /// Forget a draft.
    #[pyo3(signature = (draft, /))]
    fn forget_draft(&self, py: Python<'_>, #[pyo3(from_py_with = number)] draft: u32) -> PyResult<()> {
        self.0.with(py, |tree| {
            tree.forget_draft(draft);
            Ok(())
        })
    }

    /// Like `request`, with the messages of a draft behind those of its path.
    #[pyo3(signature = (draft, head, tail, /))]
    fn request_draft<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = number)] draft: u32,
        head: Data<'_>,
        tail: Data<'_>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.body(py, Source::Draft(draft), &head, &tail)
    }

    /// Join `head`, the messages from the root to `node` separated by commas, and `tail`, in one allocation.
    #[pyo3(signature = (node, head, tail, /))]
    fn request<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = number)] node: u32,
        head: Data<'_>,
        tail: Data<'_>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.body(py, Source::Path(node.into()), &head, &tail)
    }

    /// Whether a recorded context has messages: none has that is only a drift of token ids from the path.
    #[pyo3(signature = (context, /))]
    fn has_messages(&self, py: Python<'_>, #[pyo3(from_py_with = number)] context: u32) -> PyResult<bool> {
        self.0.with(py, |tree| tree.has_messages(context.into()))
    }

    /// Like `request`, over a recorded context, whose pieces are joined.
    #[pyo3(signature = (context, head, tail, /))]
    fn request_context<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = number)] context: u32,
        head: Data<'_>,
        tail: Data<'_>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.body(py, Source::Context(context.into()), &head, &tail)
    }

    /// The messages from the root to `node` as one JSON array.
    #[pyo3(signature = (node, /))]
    fn messages<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = number)] node: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.body(py, Source::Path(node.into()), b"[", b"]")
    }

    /// Nodes from the root's child to `node`, in order; empty for the root.
    #[pyo3(signature = (node, /))]
    fn path(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<Vec<u32>> {
        self.0.with(py, |tree| Ok(tree.path(node.into())?.into_iter().map(NodeId::get).collect()))
    }

    /// Children of `node` in the order they were made.
    #[pyo3(signature = (node, /))]
    fn children(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<Vec<u32>> {
        self.0.with(py, |tree| Ok(tree.children(node.into())?.into_iter().map(NodeId::get).collect()))
    }

    /// One node, by name: parent, kind, depth, turns, agent and so on.
    #[pyo3(signature = (node, /))]
    fn node(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<NodeView> {
        self.0.with(py, |tree| tree.node(node.into()).map(NodeView::from))
    }

    /// The node's message; empty for the root.
    #[pyo3(signature = (node, /))]
    fn message<'py>(&self, py: Python<'py>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<Bound<'py, PyBytes>> {
        self.0.with(py, |tree| Ok(PyBytes::new(py, tree.message(node.into())?)))
    }

    /// What a model turn said beside its message, or None.
    #[pyo3(signature = (node, /))]
    fn aside(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<Option<String>> {
        self.said_beside(py, node.into())
    }

    /// Write a report on a node, in the place of the one before.
    #[pyo3(signature = (node, text, /))]
    fn report(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32, text: Text<'_>) -> PyResult<()> {
        self.0.with(py, |tree| tree.report(node.into(), &text))
    }

    /// What was reported on a node last, or None.
    #[pyo3(signature = (node, /))]
    fn report_of(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<Option<String>> {
        self.0.with(py, |tree| Ok(tree.report_of(node.into())?.map(str::to_owned)))
    }

    /// The node's tokens, and how sure the model was of them; None where they are not known.
    #[pyo3(signature = (node, /))]
    fn tokens_of(&self, py: Python<'_>, #[pyo3(from_py_with = number)] node: u32) -> PyResult<Option<TokenBuffer>> {
        self.0.with(py, |tree| {
            let uncertainty = tree.node(node.into())?.uncertainty;
            Ok(tree.tokens_of(node.into())?.map(|tokens| TokenBuffer { tokens: tokens.into(), uncertainty }))
        })
    }

    /// One rollout, by name: point, leaf, path, termination, answer, reward, usage and so on.
    #[pyo3(signature = (rollout, /))]
    fn rollout(&self, py: Python<'_>, #[pyo3(from_py_with = number)] rollout: u32) -> PyResult<RolloutView> {
        self.0.with(py, |tree| tree.rollout(rollout.into()).map(RolloutView::from))
    }

    /// What rows are made of: how many nodes there are, the digest, `tokens`, and for each rollout the columns of its row, with
    /// the first turn on its path in the place of the last.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<(u32, String, TokenTotals, Vec<Bound<'py, PyTuple>>)> {
        let (nodes, digest, tokens, facts) = self.sweep(py, |tree| {
            let facts: Vec<_> = tree.rollout_facts().into_iter().map(RolloutRow::from).collect();
            Ok((tree.nodes(), tree.digest(), tree.tokens(), facts))
        })?;
        let rollouts = (0..).zip(facts).map(|(rollout, row)| row.columns(py, rollout)).collect::<PyResult<_>>()?;
        Ok((nodes, format!("{digest:032x}"), totals(&tokens), rollouts))
    }

    /// Rollouts that have not ended, ascending.
    #[getter]
    fn growing(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.0.with(py, |tree| Ok(tree.growing()))
    }

    /// How many rollouts were opened.
    #[getter]
    fn rollouts(&self, py: Python<'_>) -> PyResult<u32> {
        self.0.with(py, |tree| Ok(tree.rollouts()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |tree| Ok(tree.nodes() as usize))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |tree| {
            let (nodes, rollouts) = (tree.nodes(), tree.rollouts());
            Ok(format!("<CoreTree: {nodes} nodes, {rollouts} rollouts, {} growing>", tree.growing_count()))
        })
    }

    /// Per node its parent (u32) and its kind (u8), per rollout the node it has reached (u32).
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<[Bound<'py, PyAny>; 3]> {
        let (parents, kinds, leaves) = self.sweep(py, |tree| Ok(tree.shape()))?;
        Ok([view(py, &parents)?, view(py, &kinds)?, view(py, &leaves)?])
    }

    /// `(flat, tree, flat_generated, tree_generated, longest, unreported, exact)`, in tokens.
    fn tokens(&self, py: Python<'_>) -> PyResult<TokenTotals> {
        self.sweep(py, |tree| Ok(tree.tokens())).map(|all| totals(&all))
    }

    /// Per node: rollouts passing through (u32), scored ones (u32), and their mean reward (f64).
    fn values<'py>(&self, py: Python<'py>) -> PyResult<[Bound<'py, PyAny>; 3]> {
        let all = self.sweep(py, |tree| Ok(tree.values()))?;
        Ok([view(py, &all.visits)?, view(py, &all.scored)?, view(py, &all.mean)?])
    }

    /// Per node: scored rollouts through it (u32), the sum of their rewards (f64), and rollouts through it at all (u32).
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<[Bound<'py, PyAny>; 3]> {
        let (visits, value, passes) = self.left_behind(py)?;
        Ok([view(py, &visits)?, view(py, &value)?, view(py, &passes)?])
    }

    /// Bytes that memory is held for.
    fn memory(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |tree| Ok(tree.memory().total()))
    }

    /// Forget everything but the root and keep the memory for the next task.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.0.with(py, |tree| {
            tree.reset();
            Ok(())
        })
    }

    /// 32 hex digits over all rollouts in order of fork path: messages, terminations, answers, rewards.
    fn digest(&self, py: Python<'_>) -> PyResult<String> {
        self.sweep(py, |tree| Ok(tree.digest())).map(|digest| format!("{digest:032x}"))
    }

    /// What changed since the last call, as one checksummed record with a sequence number; None if nothing did. Calls of
    /// models and tools travel with it, as tuples in the order of their rows; they are in no tree.
    #[pyo3(signature = (calls = Vec::new(), tools = Vec::new(), /))]
    fn delta<'py>(
        &self,
        py: Python<'py>,
        calls: Vec<ModelFields>,
        tools: Vec<ToolFields>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let calls = log(&calls, &tools);
        let delta = self.0.with(py, |tree| tree.delta_with(&calls))?;
        Ok(delta.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Replay a delta of the same tree. False if it was applied before; raises on a gap, corruption or truncation.
    #[pyo3(signature = (delta, /))]
    fn apply(&self, py: Python<'_>, delta: Data<'_>) -> PyResult<bool> {
        let bytes: &[u8] = &delta;
        // A short delta can name what is long: its contexts are hashed, unless that takes long as well.
        if bytes.len() < LARGE_BYTES
            && let Some(applied) = self.0.with(py, |tree| tree.apply_short(bytes, LARGE_BYTES as u64))?
        {
            return Ok(applied);
        }
        self.0.with_long(py, |_| true, |tree| tree.apply(bytes))
    }

    /// Walk every invariant; raises `TreeError` naming the first that fails.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.copy(py, |tree| tree.check())
    }
}
