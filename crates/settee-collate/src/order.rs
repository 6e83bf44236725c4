//! The orders of values, and the bytes that stand for types.

/// Ends an array or an object. Below all tags.
pub const END: u8 = 1;

/// An order of JSON values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Collation {
    /// null, false, true, numbers, strings by the root collation, arrays, objects.
    #[default]
    Unicode,
    /// Erlang's order of terms: numbers, false, null, true, objects, arrays, strings by their bytes. The order
    /// of a view with `"options": {"collation": "raw"}`.
    Raw,
}

/// The first bytes of sort keys, by type.
pub(crate) struct Tags {
    pub(crate) null: u8,
    pub(crate) no: u8,
    pub(crate) yes: u8,
    pub(crate) number: u8,
    pub(crate) string: u8,
    pub(crate) array: u8,
    pub(crate) object: u8,
}

impl Collation {
    pub(crate) fn tags(self) -> &'static Tags {
        match self {
            Collation::Unicode => &Tags { null: 2, no: 3, yes: 4, number: 5, string: 6, array: 7, object: 8 },
            Collation::Raw => &Tags { number: 2, no: 3, null: 4, yes: 5, object: 6, array: 7, string: 8 },
        }
    }
}
