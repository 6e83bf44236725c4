//! What a log was given and was told, and whether what is found agrees with it.
//!
//! The checks here are all that the tests of power losses, of failing disks and of planted faults
//! have: none of them knows what was done to the machine.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use settee_log::{Appended, Location, RecordRef};

/// Bytes of a key: the batch's number, the record's index in it, and how many there are.
const KEY_SIZE: usize = 12;

/// A record's value, as it was submitted.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Inline(Bytes),
    Extents(Vec<Bytes>),
}

/// A batch that was submitted.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) values: Vec<Value>,
    /// The last `Seq` before its extents: they go with it.
    pub(crate) extents_after: u64,
    /// What `append` said.
    pub(crate) appended: Option<Appended>,
}

/// A record as replay hands it over.
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

    /// The batch's number, the index and the count.
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

/// What may be found, and what must be.
#[derive(Debug, Default)]
pub(crate) struct Model {
    batch_count: u32,
    /// What was submitted and may be found, by number.
    pub(crate) batches: BTreeMap<u32, Submitted>,
    /// All up to here was said to be written; persisted.
    pub(crate) written: u64,
    pub(crate) persisted: u64,
    /// The last `Seq` that was given.
    pub(crate) accepted: u64,
    /// Nothing before this is needed.
    pub(crate) floor: u64,
}

impl Model {
    /// Takes in a batch that is about to be submitted; its number.
    pub(crate) fn submit(&mut self, values: Vec<Value>) -> u32 {
        self.batch_count += 1;
        self.batches
            .insert(self.batch_count, Submitted { values, extents_after: self.accepted, appended: None });
        self.batch_count
    }

    /// Whether its records are to be read, and its extents.
    pub(crate) fn is_needed(&self, batch: u32) -> bool {
        let Some(Submitted { values, extents_after, appended: Some(appended) }) = self.batches.get(&batch)
        else {
            return false;
        };
        let has_extents = values.iter().any(|value| matches!(value, Value::Extents(_)));
        appended.first_seq.0 >= self.floor && (!has_extents || *extents_after >= self.floor)
    }

    /// The log refused it, or whoever submitted it has gone: it must never be found.
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

    /// The log shows that all up to `seq` is persisted.
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

    /// The log says that all up to `seq` is written.
    pub(crate) fn see_written(&mut self, seq: u64) {
        self.written = self.written.max(seq);
    }

    /// Compares what was found with what was submitted. Acknowledged is what survives the end
    /// of the process, where `written` says so, or else what survives the end of the power.
    /// From here on what was found is all there is, and all of it is persisted; `shown` is the
    /// mark that the log shows then.
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
        // Where no record is left a header tells what came before.
        if found.last().is_some_and(|last| last.seq != shown) {
            return Err(format!("Seq {shown} is shown as persisted, {} records were found", found.len()));
        }
        (self.accepted, self.written, self.persisted) = (shown, shown, shown);
        Ok(())
    }

    /// The batches that were found, each whole and as it was submitted, and where they lie.
    fn batches_of(&self, found: &[Found]) -> Result<BTreeMap<u32, Appended>, String> {
        let mut batches = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut rest = found;
        while let Some(first) = rest.first() {
            let (number, _, count) = first.identity()?;
            let Some(submitted) = self.batches.get(&number) else {
                return Err(format!("batch {number} at Seq {} isn't there, or is there no more", first.seq));
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
                if matches!(value, Value::Inline(value) if *value != record.value) {
                    return Err(format!("garbled value in batch {number} at Seq {}", record.seq));
                }
            }
            let locations: Vec<_> = records.iter().map(|record| record.location).collect();
            let told = submitted.appended.as_ref();
            if told.is_some_and(|told| told.first_seq.0 != first.seq || told.locations != locations) {
                return Err(format!("reordered: batch {number} was told another place than {}", first.seq));
            }
            let (first_seq, last_seq) = (settee_log::Seq(first.seq), settee_log::Seq(records[count - 1].seq));
            batches.insert(number, Appended { first_seq, last_seq, locations, group: 0 });
            rest = others;
        }
        Ok(batches)
    }
}
