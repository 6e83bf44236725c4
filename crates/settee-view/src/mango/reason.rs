//! The reasons against an index.

/// A reason against an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A column isn't in the selector.
    FieldMismatch,
    /// The selector has `$text`.
    NeedsTextSearch,
    /// It doesn't have the sort's order.
    SortOrderMismatch,
    /// It is partial and wasn't requested.
    IsPartial,
    /// It is for partitions and the search isn't in one, or the other way round.
    ScopeMismatch,
    /// Another one was requested.
    ExcludedByUser,
    /// JSON indexes are preferred.
    UnfavoredType,
    /// Its first columns have fewer of the compared fields than there are.
    LessOverlap,
    /// It has more columns.
    TooManyFields,
    /// It comes later by design document and name.
    AlphabeticallyComesAfter,
}

impl Reason {
    /// Its name in `_explain`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::FieldMismatch => "field_mismatch",
            Reason::NeedsTextSearch => "needs_text_search",
            Reason::SortOrderMismatch => "sort_order_mismatch",
            Reason::IsPartial => "is_partial",
            Reason::ScopeMismatch => "scope_mismatch",
            Reason::ExcludedByUser => "excluded_by_user",
            Reason::UnfavoredType => "unfavored_type",
            Reason::LessOverlap => "less_overlap",
            Reason::TooManyFields => "too_many_fields",
            Reason::AlphabeticallyComesAfter => "alphabetically_comes_after",
        }
    }
}
