//! What only model turns have: what their model calls said beside the message.

use crate::error::{Finding, Result};
use crate::id::{self, ContextId, NONE, NameId, RolloutId, TokenCount};
use crate::reply::Uncertainty;
use crate::storage::hash::fingerprint;
use crate::storage::intern::Pool;
use crate::storage::{Empty, Seldom, held};
use crate::wire::op::Call;

/// One turn's part, 36 bytes. What few turns have is a number of a store beside.
#[derive(Clone, Copy, Debug)]
struct CallRow {
    namespace: NameId,
    context: u32,
    finish: NameId,
    prompt: TokenCount,
    generated: TokenCount,
    aside: u32,
    uncertainty: u32,
    // The rollout whose call gave all of that, or where several did, what each gave.
    by: RolloutId,
    sources: u32,
}

/// For each figure of a turn, the rollout whose call gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sources {
    finish: RolloutId,
    prompt: RolloutId,
    generated: RolloutId,
    aside: RolloutId,
    uncertainty: RolloutId,
    tokens: RolloutId,
}

impl Sources {
    const fn all(by: RolloutId) -> Self {
        Self { finish: by, prompt: by, generated: by, aside: by, uncertainty: by, tokens: by }
    }
}

/// The rows of a tree's model turns.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    rows: Vec<CallRow>,
    more: Seldom<CallStores>,
}

/// What few turns have.
#[derive(Clone, Debug)]
struct CallStores {
    sources: Vec<Sources>,
    asides: Pool<u8>,
    uncertainties: Vec<Uncertainty>,
}

impl CallStores {
    const fn new() -> Self {
        Self { sources: Vec::new(), asides: Pool::new("aside"), uncertainties: Vec::new() }
    }
}

impl Default for CallStores {
    fn default() -> Self {
        Self::new()
    }
}

impl Empty for CallStores {
    fn empty() -> &'static Self {
        static NONE: CallStores = CallStores::new();
        &NONE
    }
}

impl Calls {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new(), more: Seldom::default() }
    }

    /// Keep what a rollout's call said; its number.
    pub(crate) fn insert(&mut self, by: RolloutId, call: &Call<'_>) -> Result<u32> {
        let row = id::next(self.rows.len(), "turn")?;
        let (aside, uncertainty) = (self.aside_of(call)?, self.uncertainty_of(call)?);
        self.rows.push(CallRow {
            namespace: call.namespace,
            context: id::pack(call.context.map(ContextId::get)),
            finish: call.finish,
            prompt: call.prompt,
            generated: call.generated,
            aside,
            uncertainty,
            by,
            sources: NONE,
        });
        Ok(row)
    }

    /// Take in what another rollout's call of the same turn said. Of each figure, the one counts that the rollout gave that
    /// was opened first of those that gave any, whichever arrives first.
    pub(crate) fn fill(&mut self, row: u32, by: RolloutId, call: &Call<'_>) -> Result<()> {
        let (mut known, mut sources) = (self.rows[row as usize], self.sources(row));
        let counts = |lacks: bool, from: RolloutId| lacks || by < from;
        if by < sources.finish {
            (sources.finish, known.finish) = (by, call.finish);
        }
        if call.prompt.get().is_some() && counts(known.prompt.get().is_none(), sources.prompt) {
            (sources.prompt, known.prompt) = (by, call.prompt);
        }
        if call.generated.get().is_some() && counts(known.generated.get().is_none(), sources.generated) {
            (sources.generated, known.generated) = (by, call.generated);
        }
        if call.aside.is_some() && counts(known.aside == NONE, sources.aside) {
            (sources.aside, known.aside) = (by, self.aside_of(call)?);
        }
        if !call.uncertainty.is_unknown() && counts(known.uncertainty == NONE, sources.uncertainty) {
            sources.uncertainty = by;
            match self.more.uncertainties.get_mut(known.uncertainty as usize) {
                Some(uncertainty) => *uncertainty = call.uncertainty,
                None => known.uncertainty = self.uncertainty_of(call)?,
            }
        }
        self.rows[row as usize] = known;
        self.set_sources(row, sources)
    }

    /// The rollout whose tokens a turn has.
    pub(crate) fn tokens_by(&self, row: u32) -> RolloutId {
        self.sources(row).tokens
    }

    /// The tokens that a turn has are another rollout's, or its as well.
    pub(crate) fn set_tokens_by(&mut self, row: u32, by: RolloutId) -> Result<()> {
        self.set_sources(row, Sources { tokens: by, ..self.sources(row) })
    }

    fn sources(&self, row: u32) -> Sources {
        let CallRow { by, sources, .. } = self.rows[row as usize];
        id::unpack(sources).map_or(Sources::all(by), |id| self.more.sources[id as usize])
    }

    fn set_sources(&mut self, row: u32, sources: Sources) -> Result<()> {
        let known = &mut self.rows[row as usize];
        match id::unpack(known.sources).and_then(|id| self.more.sources.get_mut(id as usize)) {
            Some(kept) => *kept = sources,
            None if sources == Sources::all(known.by) => (),
            None if sources == Sources::all(sources.finish) => known.by = sources.finish,
            None => {
                known.sources = id::next(self.more.sources.len(), "turn")?;
                self.more.sources.push(sources);
            }
        }
        Ok(())
    }

    fn aside_of(&mut self, call: &Call<'_>) -> Result<u32> {
        let Some(text) = call.aside else { return Ok(NONE) };
        let hash = fingerprint(text.as_bytes());
        let asides = &mut self.more.asides;
        asides.find(text.as_bytes(), hash).map_or_else(|| asides.insert(text.as_bytes(), hash), Ok)
    }

    fn uncertainty_of(&mut self, call: &Call<'_>) -> Result<u32> {
        if call.uncertainty.is_unknown() {
            return Ok(NONE);
        }
        let id = id::next(self.more.uncertainties.len(), "uncertainty")?;
        self.more.uncertainties.push(call.uncertainty);
        Ok(id)
    }

    pub(crate) fn namespace(&self, row: u32) -> NameId {
        self.rows[row as usize].namespace
    }

    pub(crate) fn context(&self, row: u32) -> Option<ContextId> {
        id::unpack(self.rows[row as usize].context).map(ContextId::new)
    }

    pub(crate) fn finish(&self, row: u32) -> NameId {
        self.rows[row as usize].finish
    }

    /// Prompt and completion tokens as the server reported them.
    pub(crate) fn figures(&self, row: u32) -> (TokenCount, TokenCount) {
        let CallRow { prompt, generated, .. } = self.rows[row as usize];
        (prompt, generated)
    }

    /// What was said and is not sent again; it is UTF-8.
    pub(crate) fn aside(&self, row: u32) -> Option<&[u8]> {
        id::unpack(self.rows[row as usize].aside).map(|aside| self.more.asides.get(aside))
    }

    pub(crate) fn uncertainty(&self, row: u32) -> Uncertainty {
        id::unpack(self.rows[row as usize].uncertainty)
            .map_or(Uncertainty::UNKNOWN, |id| self.more.uncertainties[id as usize])
    }

    pub(crate) fn count(&self) -> u32 {
        id::count(self.rows.len())
    }

    /// Bytes that memory is held for.
    pub(crate) fn memory(&self) -> usize {
        let CallStores { sources, asides, uncertainties } = &*self.more;
        held(&self.rows) + held(sources) + asides.memory() + held(uncertainties)
    }

    /// Walk the invariants of the calls. `names` and `contexts` are how many of each the tree has.
    pub(crate) fn check(&self, names: u32, contexts: u32) -> Finding {
        let CallStores { sources, asides, uncertainties } = &*self.more;
        asides.check(fingerprint)?;
        for (at, row) in self.rows.iter().enumerate() {
            let missing = |what| Err(format!("turn {at} uses {what} that does not exist"));
            if row.namespace.get() >= names || row.finish.get() >= names {
                return missing("a name");
            }
            if id::unpack(row.context).is_some_and(|context| context >= contexts) {
                return missing("a context");
            }
            if id::unpack(row.aside).is_some_and(|aside| aside >= asides.count()) {
                return missing("an aside");
            }
            if id::unpack(row.sources).is_some_and(|id| id as usize >= sources.len()) {
                return missing("a list of sources");
            }
            if id::unpack(row.uncertainty).is_some_and(|id| id as usize >= uncertainties.len()) {
                return missing("an uncertainty");
            }
        }
        for aside in 0..asides.count() {
            if std::str::from_utf8(asides.get(aside)).is_err() {
                return Err(format!("aside {aside} is not UTF-8"));
            }
        }
        uncertainties.iter().try_for_each(Uncertainty::check).map_err(|error| error.to_string())
    }

    /// Forget every call and keep the memory.
    pub(crate) fn reset(&mut self) {
        self.rows.clear();
        if let Some(CallStores { sources, asides, uncertainties }) = self.more.changed() {
            sources.clear();
            asides.reset();
            uncertainties.clear();
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::*;

    fn said(aside: Option<&'static str>, entropy: f32) -> Call<'static> {
        let uncertainty = Uncertainty { entropy: [entropy; 3], perplexity: [entropy.exp(); 3], opening: entropy };
        Call { aside, uncertainty, ..Call::default() }
    }

    #[test]
    fn what_the_first_did_not_say_others_fill_in() {
        let mut calls = Calls::new();
        let row = calls.insert(RolloutId::new(0), &said(None, f32::NAN)).unwrap();
        assert_eq!((calls.aside(row), calls.uncertainty(row)), (None, Uncertainty::UNKNOWN));
        calls.fill(row, RolloutId::new(1), &said(Some("hm"), 0.5)).unwrap();
        calls.fill(row, RolloutId::new(2), &said(Some("oh"), 0.7)).unwrap();
        assert_eq!((calls.aside(row), calls.uncertainty(row).entropy), (Some(&b"hm"[..]), [0.5; 3]));
        assert_eq!(calls.check(1, 0), Ok(()));
    }

    #[test]
    fn what_is_wrong_with_a_call_is_found() {
        let finding = |break_it: fn(&mut Calls)| {
            let mut calls = Calls::new();
            calls.insert(RolloutId::new(0), &said(Some("hm"), 0.5)).unwrap();
            break_it(&mut calls);
            calls.check(1, 0).unwrap_err()
        };
        assert_eq!(finding(|calls| calls.rows[0].finish = NameId::new(1)), "turn 0 uses a name that does not exist");
        assert_eq!(finding(|calls| calls.rows[0].context = 0), "turn 0 uses a context that does not exist");
        assert_eq!(finding(|calls| calls.rows[0].aside = 1), "turn 0 uses an aside that does not exist");
        assert_eq!(finding(|calls| calls.rows[0].sources = 0), "turn 0 uses a list of sources that does not exist");
        assert_eq!(finding(|calls| calls.rows[0].uncertainty = 1), "turn 0 uses an uncertainty that does not exist");
        let broken = finding(|calls| {
            calls.more.asides.insert(b"\xff", fingerprint(b"\xff")).unwrap();
        });
        assert_eq!(broken, "aside 1 is not UTF-8");
        let negative = finding(|calls| calls.more.uncertainties[0].entropy[0] = -1.0);
        assert!(negative.starts_with("the entropy of region think is -1"), "{negative}");
    }
}
