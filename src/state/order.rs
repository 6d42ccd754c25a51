//! STUB
/// What stands in an [`Order`]: a small value that compares by what it points to.
pub trait Item: Clone + std::fmt::Debug {
    /// What it is sought by.
    type Seek<'a>: Copy;
    /// The item's own seek value.
    fn seek(&self) -> Self::Seek<'_>;
    /// Compares two.
    fn compare(a: Self::Seek<'_>, b: Self::Seek<'_>) -> std::cmp::Ordering;
}

/// A counted copy-on-write B+tree of unique items. Cloning is O(1); a change copies the path only where it is shared.
#[derive(Debug, Clone)]
pub struct Order<T>(std::marker::PhantomData<T>);

impl<T: Item> Order<T> {
    pub fn new() -> Self { todo!() }
    pub fn len(&self) -> u64 { todo!() }
    pub fn is_empty(&self) -> bool { todo!() }
    pub fn get(&self, _seek: T::Seek<'_>) -> Option<&T> { todo!() }
    /// Puts an item; returns the equal one that it replaced.
    pub fn insert(&mut self, _item: T) -> Option<T> { todo!() }
    pub fn remove(&mut self, _seek: T::Seek<'_>) -> Option<T> { todo!() }
    /// How many items come before the first one for which `before` is false; `before` must be monotone
    /// (true for a prefix of the order).
    pub fn rank(&self, _before: impl Fn(&T) -> bool) -> u64 { todo!() }
    /// The item at a place, 0 first.
    pub fn at(&self, _place: u64) -> Option<&T> { todo!() }
    /// The items from a place on, ascending.
    pub fn from(&self, _place: u64) -> Iter<'_, T> { todo!() }
    /// The items before a place, descending.
    pub fn back_from(&self, _place: u64) -> BackIter<'_, T> { todo!() }
    /// From items that ascend.
    pub fn from_sorted(_items: impl Iterator<Item = T>) -> Self { todo!() }
}

/// Ascending items (Box-free, amortised O(1)).
#[derive(Debug)]
pub struct Iter<'a, T>(std::marker::PhantomData<&'a T>);
impl<'a, T> Iterator for Iter<'a, T> { type Item = &'a T; fn next(&mut self) -> Option<&'a T> { todo!() } }
/// Descending items.
#[derive(Debug)]
pub struct BackIter<'a, T>(std::marker::PhantomData<&'a T>);
impl<'a, T> Iterator for BackIter<'a, T> { type Item = &'a T; fn next(&mut self) -> Option<&'a T> { todo!() } }
