//! A model of a log: what was submitted and acknowledged, and whether the recovered records agree with it.
//!
//! The tests of power losses, failing disks and failpoints use only these checks, which know nothing of the
//! injected fault.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use settee_log::{Appended, Location, RecordRef};

/// Size of a key in bytes: the batch's number, the record's index in it, and the number of its records.
const KEY_SIZE: usize = 12;

/// A submitted batch.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// The values of its records.
    pub(crate) values: Vec<Bytes>,
    /// The result of `append`.
    pub(crate) appended: Option<Appended>,
}

/// A record as passed to replay.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) seq: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) location: Location,
}

impl Found {
    pub(crate) fn new(location: Location, record: RecordRef<'_>) -> Found {
        Found { seq: record.seq.0, key: record.key.to_vec(), value: record.value.to_vec(), location }
    }

    /// The batch's number, the record's index and the number of records.
    fn identity(&self) -> Result<(u32, usize, usize), String> {
        let key: [u8; KEY_SIZE] =
            self.key.as_slice().try_into().map_err(|_| format!("garbled key of Seq {}", self.seq))?;
        let number = |at: usize| u32::from_be_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
        Ok((number(0), number(4) as usize, number(8) as usize))
    }
}

/// The key of a record.
pub(crate) fn key(batch: u32, index: usize, count: usize) -> Vec<u8> {
    [batch, index as u32, count as u32].iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// The records that may be found, and those that must be.
#[derive(Debug, Default)]
pub(crate) struct Model {
    batch_count: u32,
    /// The submitted batches that may be found, by number.
    pub(crate) batches: BTreeMap<u32, Submitted>,
    /// Everything up to this `Seq` was acknowledged as written.
    pub(crate) written: u64,
    pub(crate) persisted: u64,
    /// The last `Seq` that was assigned.
    pub(crate) accepted: u64,
    /// No record before this `Seq` is needed.
    pub(crate) floor: u64,
}

impl Model {
    /// Adds a batch that is about to be submitted; returns its number.
    pub(crate) fn submit(&mut self, values: Vec<Bytes>) -> u32 {
        self.batch_count += 1;
        self.batches.insert(self.batch_count, Submitted { values, appended: None });
        self.batch_count
    }

    /// Whether its records must be readable.
    pub(crate) fn is_needed(&self, batch: u32) -> bool {
        let appended = self.batches.get(&batch).and_then(|submitted| submitted.appended.as_ref());
        appended.is_some_and(|appended| appended.first_seq.0 >= self.floor)
    }

    /// The log refused the batch, or the append was cancelled: it must never be found.
    pub(crate) fn refused(&mut self, batch: u32) {
        self.batches.remove(&batch);
    }

    /// The log accepted it.
    pub(crate) fn accepted(&mut self, batch: u32, appended: Appended) -> Result<(), String> {
        let submitted = self.batches.get_mut(&batch).expect("it was submitted");
        if appended.first_seq.0 <= self.accepted {
            return Err(format!("batch {batch} got Seq {} twice", appended.first_seq.0));
        }
        self.accepted = appended.last_seq.0;
        submitted.appended = Some(appended);
        Ok(())
    }

    /// The log reports everything up to `seq` as persisted.
    pub(crate) fn see_persisted(&mut self, seq: u64) -> Result<(), String> {
        if seq < self.persisted {
            return Err(format!("Seq {} was said to be persisted, then {seq}", self.persisted));
        }
        if seq > self.accepted {
            return Err(format!("Seq {seq} is persisted, {} accepted", self.accepted));
        }
        self.persisted = seq;
        self.written = self.written.max(seq);
        Ok(())
    }

    /// The log reports everything up to `seq` as written.
    pub(crate) fn see_written(&mut self, seq: u64) {
        self.written = self.written.max(seq);
    }

    /// Compares the recovered records with the submitted ones. Acknowledged records must be there: those
    /// reported as written if `written` is set (after a kill), otherwise those reported as persisted (after a
    /// power loss). From here on the recovered records are the log's content, and all are persisted; `shown`
    /// is the persisted watermark that the log reports then.
    pub(crate) fn recover(&mut self, found: &[Found], written: bool, shown: u64) -> Result<(), String> {
        for pair in found.windows(2) {
            if pair[1].seq != pair[0].seq + 1 {
                return Err(format!("reordered: Seq {} after {}", pair[1].seq, pair[0].seq));
            }
        }
        let batches = self.batches_of(found)?;
        let acknowledged = if written { self.written } else { self.persisted };
        for (number, submitted) in &self.batches {
            let Some(appended) = &submitted.appended else { continue };
            let (first, last) = (appended.first_seq.0, appended.last_seq.0);
            if last <= acknowledged && last >= self.floor && !batches.contains_key(number) {
                return Err(format!(
                    "lost batch {number}, Seq {first} to {last} of {acknowledged}, with {} needed on",
                    self.floor
                ));
            }
        }
        self.batches.retain(|number, _| batches.contains_key(number));
        for (number, appended) in batches {
            self.batches.get_mut(&number).expect("it was submitted").appended = Some(appended);
        }
        // If no record is left, a header says which `Seq` came before.
        if found.last().is_some_and(|last| last.seq != shown) {
            return Err(format!("Seq {shown} is shown as persisted, {} records were found", found.len()));
        }
        (self.accepted, self.written, self.persisted) = (shown, shown, shown);
        Ok(())
    }

    /// The recovered batches with their locations, each whole and as submitted.
    fn batches_of(&self, found: &[Found]) -> Result<BTreeMap<u32, Appended>, String> {
        let mut batches = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut rest = found;
        while let Some(first) = rest.first() {
            let (number, _, count) = first.identity()?;
            let Some(submitted) = self.batches.get(&number) else {
                return Err(format!(
                    "batch {number} at Seq {} was never accepted, or was truncated",
                    first.seq
                ));
            };
            if !seen.insert(number) {
                return Err(format!("batch {number} twice, again at Seq {}", first.seq));
            }
            if count != submitted.values.len() || rest.len() < count {
                return Err(format!("half of batch {number} at Seq {}", first.seq));
            }
            let (records, others) = rest.split_at(count);
            for (index, (record, value)) in records.iter().zip(&submitted.values).enumerate() {
                if record.identity()? != (number, index, count) {
                    return Err(format!("another record in batch {number} at Seq {}", record.seq));
                }
                if *value != record.value {
                    return Err(format!("garbled value in batch {number} at Seq {}", record.seq));
                }
            }
            let locations: Vec<_> = records.iter().map(|record| record.location).collect();
            let reported = submitted.appended.as_ref();
            if reported
                .is_some_and(|reported| reported.first_seq.0 != first.seq || reported.locations != locations)
            {
                return Err(format!(
                    "reordered: batch {number} was reported at another position than {}",
                    first.seq
                ));
            }
            let (first_seq, last_seq) = (settee_log::Seq(first.seq), settee_log::Seq(records[count - 1].seq));
            batches.insert(number, Appended { first_seq, last_seq, locations, group: 0 });
            rest = others;
        }
        Ok(batches)
    }
}
