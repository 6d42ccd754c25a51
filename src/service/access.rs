//! STUB
/// Who a credential belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /** the key's id: the author of changes */
    pub id: String,
}
