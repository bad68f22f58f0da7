//! Bounds the streams of one visitor, so that nobody takes all streams of the instance.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most streams of one visitor.
pub(super) const MAX_OF_ACTOR: usize = 16;

/// The number of open streams by visitor. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenStreams(Arc<Mutex<HashMap<Arc<str>, usize>>>);

/// The right to one stream, until it is dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    streams: OpenStreams,
    actor: Arc<str>,
}

impl OpenStreams {
    /// Permits one more stream of a visitor. `None` if they have [`MAX_OF_ACTOR`] already.
    pub(super) fn open(&self, actor: &str) -> Option<StreamPermit> {
        let actor = Arc::<str>::from(actor);
        let mut open = self.lock();
        let of_actor = open.entry(Arc::clone(&actor)).or_default();
        if *of_actor >= MAX_OF_ACTOR {
            return None;
        }
        *of_actor += 1;
        Some(StreamPermit { streams: self.clone(), actor })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        if let Some(of_actor) = open.get_mut(&self.actor) {
            *of_actor -= 1;
            if *of_actor == 0 {
                open.remove(&self.actor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_has_sixteen_streams_at_a_time() {
        let streams = OpenStreams::default();
        let mut permits: Vec<_> = (0..MAX_OF_ACTOR).map_while(|_| streams.open("alice")).collect();
        assert_eq!(permits.len(), MAX_OF_ACTOR);
        assert!(streams.open("alice").is_none() && streams.open("bob").is_some());
        permits.pop();
        assert!(streams.open("alice").is_some());
        permits.clear();
        assert!(streams.lock().is_empty());
    }
}
