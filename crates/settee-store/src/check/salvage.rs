//! Records read from a store that may be damaged, for repair.

use bytes::Bytes;
use settee_log::{Flags, RecordRef};

/// A record read from a store that may be damaged.
#[derive(Debug, Clone)]
pub struct Salvaged {
    /// The update number that it had.
    pub seq: u64,
    /// Its flags.
    pub flags: Flags,
    /// The key.
    pub key: Vec<u8>,
    /// The meta.
    pub meta: Vec<u8>,
    /// The value.
    pub value: Bytes,
}

impl Salvaged {
    pub(super) fn of(record: &RecordRef<'_>) -> Salvaged {
        Salvaged {
            seq: record.seq.0,
            flags: record.flags,
            key: record.key.to_vec(),
            meta: record.meta.to_vec(),
            value: Bytes::copy_from_slice(record.value),
        }
    }
}

/// Receives a segment's records, if they are to be salvaged.
pub(super) type SalvageOut<'a> = Option<&'a mut Vec<Salvaged>>;
