//! The order in which changes read and write the catalogue on this instance.
//!
//! There is a queue for each rank. A change waits in that of its own rank, then in those of the ranks before
//! it, and leaves them all when it has been made. So of the changes that wait a revocation of an API key is
//! next, then one by a caller of all projects; and as at most one of the ranks behind waits in each queue,
//! none waits for ever.
//!
//! Other instances are not waited for: they write with the revision that they have read, and the end of a
//! key can be written beside the catalogue, whatever they write (`change.rs`).

use std::sync::Arc;

use rlaas_auth::CallerScope;
use rlaas_core::clock::Deadline;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

use super::sync::SyncError;

/// Who makes a change, and what is changed: that decides when it is its turn.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct ChangeRank {
    /// Which projects the caller may change.
    pub scope: CallerScope,
    /// Whether the change does nothing but revoke an API key.
    pub is_revocation: bool,
}

/// The queues of the ranks, first the one that all changes wait in.
#[derive(Debug, Default)]
pub(super) struct ChangeQueues([Arc<Mutex<()>>; 4]);

impl ChangeRank {
    /// Returns the number of ranks before this one.
    fn position(self) -> usize {
        match (self.is_revocation, self.scope) {
            (true, CallerScope::AllProjects) => 0,
            (true, CallerScope::SomeProjects) => 1,
            (false, CallerScope::AllProjects) => 2,
            (false, CallerScope::SomeProjects) => 3,
        }
    }

    /// Returns `true` if the change can still end keys, beside a catalogue that is not taken.
    pub fn ends_keys_after(self, error: &SyncError) -> bool {
        let is_busy = matches!(error, SyncError::Busy);
        matches!(error, SyncError::Conflict) || is_busy && self.is_revocation
    }
}

impl ChangeQueues {
    /// Waits for the turn of a change, which lasts until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// [`SyncError::Busy`] if other changes are made for most of the time until the deadline.
    pub(super) async fn wait(
        &self,
        rank: ChangeRank,
        deadline: Deadline,
    ) -> Result<Vec<OwnedMutexGuard<()>>, SyncError> {
        let queues = self.0[..=rank.position()].iter().rev();
        let turn = async {
            let mut held = Vec::new();
            for queue in queues {
                held.push(Arc::clone(queue).lock_owned().await);
            }
            held
        };
        // The rest is for the store: one that has no time left looks as if it were away.
        let time = deadline.remaining();
        let time = if rank.is_revocation { time } else { time / 4 * 3 };
        timeout(time, turn).await.map_err(|_elapsed| SyncError::Busy)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use std::pin::pin;
    use std::sync::Mutex as StdMutex;

    use super::*;

    fn rank(is_revocation: bool, scope: CallerScope) -> ChangeRank {
        ChangeRank { scope, is_revocation }
    }

    #[tokio::test]
    async fn revocations_are_first_and_nobody_waits_for_more_than_one_of_the_ranks_behind() {
        use CallerScope::{AllProjects, SomeProjects};
        let (queues, order) = (ChangeQueues::default(), StdMutex::new(Vec::new()));
        let first = queues.wait(rank(false, SomeProjects), Deadline::NEVER).await.expect("a turn");
        let change = async |name: &'static str, rank: ChangeRank| {
            let turn = queues.wait(rank, Deadline::NEVER).await.expect("a turn");
            order.lock().expect("a list").push(name);
            drop(turn);
        };
        let mut waiting = [
            ("shop 1", false, SomeProjects),
            ("shop 2", false, SomeProjects),
            ("root 1", false, AllProjects),
            ("root 2", false, AllProjects),
            ("key of shop", true, SomeProjects),
            ("key by root", true, AllProjects),
        ]
        .map(|(name, is_revocation, scope)| Box::pin(change(name, rank(is_revocation, scope))));
        for change in &mut waiting {
            assert!(poll!(change).is_pending());
        }
        drop(first);
        let mut all = pin!(futures_util::future::join_all(waiting));
        all.as_mut().await;
        let order = order.lock().expect("a list").clone();
        let expected = ["key by root", "key of shop", "root 1", "root 2", "shop 1", "shop 2"];
        assert_eq!(order, expected);
    }

    #[tokio::test]
    async fn callers_of_all_projects_do_not_keep_those_of_one_from_their_turns() {
        use CallerScope::{AllProjects, SomeProjects};
        let queues = ChangeQueues::default();
        let first = queues.wait(rank(false, AllProjects), Deadline::NEVER).await.expect("a turn");
        let mut shop = Box::pin(queues.wait(rank(false, SomeProjects), Deadline::NEVER));
        let mut root = Box::pin(queues.wait(rank(false, AllProjects), Deadline::NEVER));
        assert!(poll!(&mut shop).is_pending() && poll!(&mut root).is_pending());
        drop(first);
        // It came before.
        drop(shop.await.expect("a turn"));
        root.await.expect("a turn");
        let held = queues.wait(rank(true, AllProjects), Deadline::NEVER).await.expect("a turn");
        let late =
            queues.wait(rank(false, AllProjects), Deadline::within(std::time::Duration::ZERO));
        assert!(matches!(late.await, Err(SyncError::Busy)));
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_while_the_store_has_time_to_answer_then() {
        let queues = ChangeQueues::default();
        let _held = queues.wait(ChangeRank::default(), Deadline::NEVER).await.expect("a turn");
        let late = Deadline::within(std::time::Duration::from_secs(1_000));
        let mut refused = std::pin::pin!(queues.wait(ChangeRank::default(), late));
        let earlier = timeout(std::time::Duration::from_secs(700), &mut refused).await;
        assert!(earlier.is_err(), "it waits");
        let refused = timeout(std::time::Duration::from_mins(1), refused).await;
        assert!(matches!(refused, Ok(Err(SyncError::Busy))));
    }
}
