//! Reports on nodes: what the path to a node came to, in a few words. Few nodes have one, so they are kept apart.

use std::collections::BTreeMap;

use crate::id::NodeId;

/// The reports, by node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reports {
    texts: BTreeMap<u32, Box<str>>,
}

impl Reports {
    /// Forget all of them.
    pub(crate) fn reset(&mut self) {
        self.texts.clear();
    }

    /// Write one in the place of the one before; an empty one is none.
    pub(crate) fn write(&mut self, id: NodeId, text: &str) {
        if text.is_empty() {
            self.texts.remove(&id.get());
        } else {
            self.texts.insert(id.get(), text.into());
        }
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&str> {
        self.texts.get(&id.get()).map(AsRef::as_ref)
    }

    /// Bytes that memory is held for, without what the map needs to find them.
    pub(crate) fn memory(&self) -> usize {
        let entry = size_of::<(u32, Box<str>)>();
        self.texts.values().map(|text| entry + text.len()).sum()
    }

    /// Every report is on a node that exists and is not the root, and says something.
    pub(crate) fn check(&self, nodes: u32) -> Result<(), String> {
        for (&id, text) in &self.texts {
            if id == NodeId::ROOT.get() || id >= nodes {
                return Err(format!("node {id}: has a report and can have none"));
            }
            if text.is_empty() {
                return Err(format!("node {id}: has an empty report"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use crate::id::{NameId, NodeId};
    use crate::tree::Tree;
    use crate::tree::key::Kind;

    #[test]
    fn a_report_where_none_can_be_is_found() {
        let finding = |id: u32, text: &str| {
            let mut tree = Tree::new();
            tree.append(NodeId::ROOT, Kind::Prompt, b"{}", None, NameId::EMPTY).unwrap();
            tree.report(NodeId::new(1), "as it went").unwrap();
            assert_eq!(tree.check(), Ok(()));
            tree.reports.texts.insert(id, text.into());
            tree.check().unwrap_err().to_string()
        };
        assert!(finding(0, "x").ends_with("node 0: has a report and can have none"));
        assert!(finding(2, "x").ends_with("node 2: has a report and can have none"));
        assert!(finding(1, "").ends_with("node 1: has an empty report"));
    }
}
