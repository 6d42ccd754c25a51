//! Change requests: what each author may do to one, and when it applies.
