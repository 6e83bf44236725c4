//! A bounded set that always admits: when it is full, it evicts its oldest member.
//!
//! The set is for unauthenticated clients. Refusing the newest would let a few slow clients keep all others
//! out; evicting the oldest serves every client that finishes before attackers can fill the set.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A bounded set with eviction of the oldest member.
pub(crate) struct EvictingSet {
    members_max: usize,
    state: Mutex<SetState>,
}

#[derive(Default)]
struct SetState {
    next: u64,
    /// Ordered by admission.
    members: BTreeMap<u64, Arc<Notify>>,
}

/// A member of the set until this is dropped.
pub(crate) struct Member {
    set: Arc<EvictingSet>,
    number: u64,
    eviction: Arc<Notify>,
}

impl EvictingSet {
    /// An empty set of at most `members_max` members.
    pub(crate) fn new(members_max: usize) -> EvictingSet {
        EvictingSet { members_max, state: Mutex::default() }
    }

    /// Admits a member; evicts the oldest one if the set is full.
    pub(crate) fn admit(self: &Arc<EvictingSet>) -> Member {
        let eviction = Arc::new(Notify::new());
        let mut state = self.lock();
        if state.members.len() >= self.members_max
            && let Some((_, oldest)) = state.members.pop_first()
        {
            oldest.notify_one();
        }
        let number = state.next;
        state.next += 1;
        state.members.insert(number, eviction.clone());
        assert!(state.members.len() <= self.members_max.max(1), "a full set evicts");
        Member { set: self.clone(), number, eviction }
    }

    fn lock(&self) -> MutexGuard<'_, SetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// Completes once this member has been evicted.
    pub(crate) async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.set.lock().members.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_full_set_evicts_its_oldest_member_and_admits_the_new_one() {
        let set = Arc::new(EvictingSet::new(3));
        let mut members: Vec<Member> = (0..3).map(|_| set.admit()).collect();
        let is_evicted = |member: &Member| member.evicted().now_or_never().is_some();
        assert!(!members.iter().any(is_evicted));
        // A member that leaves frees a place for another.
        drop(members.remove(1));
        members.push(set.admit());
        assert!(!members.iter().any(is_evicted));
        members.push(set.admit());
        assert_eq!(members.iter().map(is_evicted).collect::<Vec<_>>(), [true, false, false, false]);
        drop(members);
        assert!(set.lock().members.is_empty());
    }
}
