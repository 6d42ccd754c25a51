//! Limits the writes in progress on a node, in total and of one access key.
//!
//! A write that another node forwards counts for its access key here as well.
//!
//! **Invariant:** one access key never has all places, so writes of other keys are still admitted.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    Principal, Refusal,
    key_shares::{KeyShares, Place},
    origin::key_tag,
};

/// The limit of writes in progress.
#[derive(Debug)]
pub(crate) struct WriteAdmission {
    places: Semaphore,
    of_keys: KeyShares,
}

/// The place of a write. Dropping it releases the place.
#[derive(Debug)]
pub(crate) struct WritePermit<'a> {
    _place: SemaphorePermit<'a>,
    _of_key: Option<Place>,
}

impl WriteAdmission {
    pub(crate) fn new(places: usize) -> Self {
        Self { places: Semaphore::new(places), of_keys: KeyShares::of(places as u64) }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] if the key has reached its limit, [`Refusal::Overloaded`] if all places are taken.
    pub(crate) fn admit(&self, principal: &Principal) -> Result<WritePermit<'_>, Refusal> {
        let of_key = match key_tag(principal).map(|tag| self.of_keys.account(tag).place()) {
            None => None,
            Some(Some(place)) => Some(place),
            Some(None) => {
                let text = "this access key has reached its limit of writes in progress on this node: half of \
                            `--writes-in-flight`. Send fewer at once, or send a batch";
                return Err(Refusal::LimitReached(text.into()));
            }
        };
        let place = self.places.try_acquire().map_err(|_| Refusal::Overloaded)?;
        Ok(WritePermit { _place: place, _of_key: of_key })
    }

    pub(crate) fn free(&self) -> usize {
        self.places.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_leaves_places_for_others() {
        let admission = WriteAdmission::new(4);
        let [greedy, other] = ["aaaaaaaaaaaa", "bbbbbbbbbbbb"].map(|id| Principal::named(id, 1));
        let held: Vec<_> = (0..2).map(|_| admission.admit(&greedy).unwrap()).collect();
        assert!(matches!(admission.admit(&greedy), Err(Refusal::LimitReached(_))));
        let (two, root) = (admission.admit(&other).unwrap(), admission.admit(&Principal::root()).unwrap());
        assert_eq!(admission.admit(&other).unwrap_err(), Refusal::Overloaded);
        assert_eq!(admission.free(), 0);
        drop((held, root));
        assert!(admission.admit(&greedy).is_ok(), "a rejected write holds nothing");
        drop(two);
        assert_eq!((admission.free(), admission.of_keys.in_use()), (4, 0));
    }
}
