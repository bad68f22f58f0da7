//! Sign-ins at the issuer that have ended: each exchanges one code, though its cookie is valid for longer.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Most sign-ins that are remembered. Above it the oldest one is forgotten.
const MAX_REMEMBERED: usize = 4_096;

/// The states of sign-ins whose code was exchanged.
#[derive(Debug, Default)]
pub(super) struct UsedSignIns(Mutex<UsedStates>);

#[derive(Debug, Default)]
struct UsedStates {
    all: HashSet<Arc<str>>,
    /// Oldest first.
    order: VecDeque<Arc<str>>,
}

impl UsedSignIns {
    /// Uses up a sign-in. Returns `false` if it was used before.
    pub(super) fn use_up(&self, state: &str) -> bool {
        let state = Arc::<str>::from(state);
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !used.all.insert(Arc::clone(&state)) {
            return false;
        }
        if used.order.len() == MAX_REMEMBERED
            && let Some(oldest) = used.order.pop_front()
        {
            used.all.remove(&oldest);
        }
        used.order.push_back(state);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_is_used_once_and_a_bounded_number_is_remembered() {
        let used = UsedSignIns::default();
        let state = |number: usize| format!("state-{number}");
        for number in 0..MAX_REMEMBERED {
            assert!(used.use_up(&state(number)));
        }
        assert!(!used.use_up(&state(0)) && !used.use_up(&state(MAX_REMEMBERED - 1)));
        assert!(used.use_up(&state(MAX_REMEMBERED)));
        assert!(!used.use_up(&state(1)) && used.use_up(&state(0)), "the oldest one is forgotten");
        let lengths = |used: &UsedStates| (used.all.len(), used.order.len());
        assert_eq!(lengths(&used.0.lock().expect("no panic")), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
