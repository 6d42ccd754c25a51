//! Futures that are made where they stay.
//!
//! The future of a request has the space of all that it may await, six to nine kilobytes. `Box::pin(future)` makes it on
//! the stack and copies all of it, and so does hyper with one that it is given as a value: 3 % of the processor time of
//! an update.
//!
//! **Invariant:** no future here is moved after it was made. The compiler may do so all the same where it does not see
//! into `make`, and costs only time.

use std::pin::Pin;

/// A future on the heap. The place is allocated first, so that `make` writes into it what the future begins with, and
/// nothing else.
pub(super) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}
