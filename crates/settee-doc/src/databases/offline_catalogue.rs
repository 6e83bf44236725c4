//! The catalogue of databases that no server has open, or of a copy of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use settee_io::Env;
use settee_store::{CheckEvent, Flags, LogOptions, Salvage, StoreOptions};

use super::catalogue_entry::{CatalogueEntry, tombstone_number};
use crate::Result;

/// The options of a store that no server has open: buffered, with the limits of `log`.
pub(super) fn plain_options(log: LogOptions) -> StoreOptions {
    StoreOptions { log: LogOptions { direct: false, ..log }, ..StoreOptions::DEFAULT }
}

/// Reads the readable part of a catalogue that isn't open: its entries, and the numbers of deleted databases.
pub(super) async fn read_catalogue(
    env: &Env,
    place: &Path,
    log: LogOptions,
) -> Result<(BTreeMap<String, CatalogueEntry>, BTreeSet<u64>)> {
    let mut report = |_: CheckEvent| {};
    let mut salvage = Salvage::begin(env, place, &plain_options(log), &mut report).await?;
    let Entries { names, deleted, .. } = read_entries(&mut salvage).await?;
    Ok((names, deleted))
}

/// What a catalogue's records say.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) names: BTreeMap<String, CatalogueEntry>,
    /// The numbers of deleted databases.
    pub(super) deleted: BTreeSet<u64>,
    /// Records that can't be decoded.
    pub(super) unreadable_count: u64,
}

/// The entries of a catalogue.
pub(super) async fn read_entries(salvage: &mut Salvage<'_>) -> Result<Entries> {
    let mut entries = Entries::default();
    while let Some(records) = salvage.next().await? {
        for record in records {
            let is_gone = record.flags.has(Flags::TOMBSTONE);
            if let Some(number) = tombstone_number(&record.key) {
                if is_gone {
                    entries.deleted.remove(&number)
                } else {
                    entries.deleted.insert(number)
                };
                continue;
            }
            match (String::from_utf8(record.key), CatalogueEntry::decode(&record.meta)) {
                (Ok(name), _) if is_gone => drop(entries.names.remove(&name)),
                (Ok(name), Ok(entry)) => drop(entries.names.insert(name, entry)),
                _ => entries.unreadable_count += 1,
            }
        }
    }
    Ok(entries)
}
